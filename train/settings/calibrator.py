"""Options of `jaxspec-train calibrator`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices
from jaxspec.train.settings.data import Data
from jaxspec.train.settings.heads import Dtype
from jaxspec.train.settings.spelling import require


@dataclasses.dataclass(frozen=True)
class Calibrator:
    """Train Cali-TS's predictor for a trained head: will the target accept what was just drafted?

    It collects its own labels, by decoding with that head. A run that was killed goes on when the same command is given
    again.

    For example: jaxspec-train calibrator --target tinyllama --head eagle
    """

    target: Path
    """Checkpoint that the head is for, or `builtin`."""
    head: str
    """Trained head: its name in the checkpoint, or its folder."""
    out: Path | None = None
    """Predictor to make; `calibrator` in the head's folder if not given, where `cali-ts` looks for it."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run; OUT.run if not given."""
    data: conf.OmitArgPrefixes[Data] = Data()
    samples: int = 400
    """Texts to decode, from prompts that are cut from the data where it is not held out."""
    prompt_tokens: int = 64
    """Tokens of a prompt, at most."""
    max_new_tokens: int = 128
    """Tokens of a text after its prompt, at most."""
    inputs: Literal["hidden", "both", "top-probability"] = "hidden"
    """What it judges a draft by: hidden states of target and drafter, as in the paper; the log of the largest
    probability that the drafter gave, which two numbers weigh; or both."""
    length: int = 10
    """Tokens of a drafted chain; the predictor tells the first ten apart."""
    batch_size: int = 16
    """Texts decoded together."""
    steps: int = 2000
    """Optimizer steps."""
    rounds: int = 64
    """Drafted chains in a step's batch."""
    learning_rate: float = 1e-3
    """Its peak; a cosine takes it to a tenth."""
    seed: int = 0
    """Decides where prompts are cut, the initial weights, and the order of training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of decoding; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    save_dtype: Dtype = "bfloat16"
    """Of the predictor on disk."""

    def __post_init__(self) -> None:
        counts = ("samples", "prompt_tokens", "max_new_tokens", "length", "batch_size", "steps", "rounds")
        require(self, lambda value: value >= 1, "be at least 1", *counts)
