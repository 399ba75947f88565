"""Options of `jaxspec-train skip-search`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices
from jaxspec.train.settings.data import Data
from jaxspec.train.settings.spelling import require

Objectives = Literal["modelled", "measured"]


@dataclasses.dataclass(frozen=True)
class SkipSearch:
    """Search which attention and MLP blocks a model can leave out while drafting (Draft & Verify).

    Nothing is trained. The search tries sets of blocks on a few prompts and minimises the time per verified token by
    Bayesian optimisation. It writes the best set, a small JSON file, where `layer-skip` finds it. It also prints two
    tables, and puts figures into RUN. One table compares this set with simpler choices of equally many blocks, the
    other has the best set of the first 50, 100, 200 and more trials. The same
    command resumes a killed search, with the same result. To extend a finished search, repeat it with its --run, more
    --trials and another --out.

    For example: jaxspec-train skip-search --target tinyllama --data ~/src --trials 300
    """

    target: Path
    """Checkpoint to search for, or `builtin`."""
    out: Path | None = None
    """Skip set to make; must not exist. Default: TARGET/heads/layer-skip."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run, with every trial, figures, and the sets of the table. Default: OUT.run."""
    prompts: Path | None = None
    """JSONL file of prompts to try sets on. Each line is {"prompt": ...} or {"turns": [...]}, whose first turn is used.
    Do not use the prompts that will measure the set. Prompts of one task give a set for that task. Default: pieces of
    the data that is not held out."""
    data: conf.OmitArgPrefixes[Data] = Data()
    chat: bool = False
    """Try sets on the assistant's answers, with the tokenizer's chat template: to the prompts of --prompts, or to the
    first turns of the conversations in --data."""
    trials: int = 300
    """Sets to try. With 80 blocks, the paper reached a speedup of 1.35 after 200 trials, 1.52 after 400, 1.57 after
    1000."""
    objective: Objectives = "modelled"
    """modelled: compute the time from the rounds of decoding and the costs of the pieces of a round, which are measured
    once; other work on the machine does not disturb it. measured: use wall-clock time."""
    method: str = "layer-skip+adaptive"
    """Method that drafts with a set in each trial. Give the builder and controller that will be used with the set."""
    samples: int = 8
    """Prompts per trial."""
    prompt_tokens: int = 64
    """Largest number of tokens of a prompt cut from the data."""
    max_new_tokens: int = 48
    """Largest number of generated tokens."""
    seed: int = 0
    """Seed of prompt selection and of the tried sets."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def __post_init__(self) -> None:
        counts = ("trials", "samples", "prompt_tokens", "max_new_tokens")
        require(self, lambda value: value >= 1, "be at least 1", *counts)
