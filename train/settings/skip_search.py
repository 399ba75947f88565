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
    """Search which attention and MLP blocks a model can leave out when it drafts for itself (Draft & Verify).

    Nothing is trained: it tries sets on a few prompts, by Bayesian optimisation of the time a verified token takes, and
    writes the best one, a small JSON file, to where `layer-skip` finds it. It ends with a table of that set beside
    plainer choices of as many blocks, and figures in RUN. A search that was killed goes on when the same command is
    given again and ends with the same set; with more --trials and another --out, a finished one goes on in its --run.

    For example: jaxspec-train skip-search --target tinyllama --data ~/src --trials 300
    """

    target: Path
    """Checkpoint to search for, or `builtin`."""
    out: Path | None = None
    """Set to make; TARGET/heads/layer-skip if not given. Must not exist."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run: every trial, figures, and the sets of the table; OUT.run if not given."""
    prompts: Path | None = None
    """JSONL file of prompts to try sets on: {"prompt": ...} or {"turns": [...]} a line (the first turn is taken). Take
    others than those that will measure the set. If not given, prompts are cut from the data, where it is not held out.
    Prompts of one task make a set for that task."""
    data: conf.OmitArgPrefixes[Data] = Data()
    trials: int = 300
    """Sets to try. For 80 blocks the paper found 1.35x with 200 of them, 1.52x with 400 and 1.57x with 1000."""
    objective: Objectives = "modelled"
    """How the time is found: from the rounds of decoding and what each piece of a round costs, measured once, which no
    other work on the machine disturbs; or by the clock."""
    method: str = "layer-skip+adaptive"
    """How to draft with a set."""
    samples: int = 8
    """Prompts to decode in each trial."""
    prompt_tokens: int = 64
    """Tokens of a prompt that is cut from the data, at most."""
    max_new_tokens: int = 48
    """Tokens of a text after its prompt, at most."""
    seed: int = 0
    """Decides where prompts are cut, and which sets are tried."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def __post_init__(self) -> None:
        counts = ("trials", "samples", "prompt_tokens", "max_new_tokens")
        require(self, lambda value: value >= 1, "be at least 1", *counts)
