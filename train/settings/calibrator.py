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
    """Train the predictor of `cali-ts` for a trained head: will the target accept the token just drafted?

    It collects its own labels by decoding with that head. The same command resumes a killed run.

    For example: jaxspec-train calibrator --target tinyllama --head eagle
    """

    target: Path
    """Checkpoint of the head's target, or `builtin`."""
    head: str
    """Trained head: its name in the checkpoint, or its folder."""
    out: Path | None = None
    """Predictor to make. Default: `calibrator` in the head's folder, where `cali-ts` looks for it."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run. Default: OUT.run."""
    data: conf.OmitArgPrefixes[Data] = Data()
    chat: bool = False
    """Decode the assistant's answers to the first turns of the conversations in --data, with the tokenizer's chat
    template."""
    samples: int = 400
    """Texts to decode. Their prompts are pieces of the data that is not held out."""
    prompt_tokens: int = 64
    """Largest number of tokens of a prompt."""
    max_new_tokens: int = 128
    """Largest number of generated tokens."""
    inputs: Literal["hidden", "both", "top-probability"] = "hidden"
    """Inputs of the predictor. hidden: hidden states of target and drafter, as in the paper. top-probability: the log
    of the drafter's largest probability, with two trained numbers. both: all of these."""
    length: int = 10
    """Tokens of a drafted chain. The predictor has separate parameters for the first ten positions."""
    batch_size: int = 16
    """Texts decoded together."""
    steps: int = 2000
    """Optimizer steps."""
    rounds: int = 64
    """Drafted chains per training step."""
    learning_rate: float = 1e-3
    """Peak learning rate; it falls to a tenth of this by a cosine schedule."""
    seed: int = 0
    """Seed of prompt selection, initial weights and training order."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of decoding. Default: float32 on a CPU, bfloat16 on an accelerator."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
    save_dtype: Dtype = "bfloat16"
    """Dtype of the stored predictor."""

    def __post_init__(self) -> None:
        counts = ("samples", "prompt_tokens", "max_new_tokens", "length", "batch_size", "steps", "rounds")
        require(self, lambda value: value >= 1, "be at least 1", *counts)
