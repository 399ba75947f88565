"""Options of `jaxspec-train generate`."""

import dataclasses
from pathlib import Path
from typing import Literal

from tyro import conf

from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.device_options import Devices
from jaxspec.train.settings.data import Data
from jaxspec.train.settings.spelling import require


@dataclasses.dataclass(frozen=True)
class Generate:
    """Let a target write text, to train its heads on.

    The first tokens of a text are greedy and the rest is sampled; it ends where the target's context does, if not
    before. OUT is JSONL, {"text": ..., "prompt": ..., "complete": ...} a line, and appears when it is complete, or not
    at all. A run that was killed goes on from OUT.part when the same command is given again, and ends with the same
    bytes.

    For example: jaxspec-train generate --target builtin --out texts.jsonl --samples 64
    """

    target: Path
    """Checkpoint that writes, or `builtin`."""
    out: Path
    """File to make; must not exist."""
    prompts: Path | None = None
    """JSONL file of prompts: {"prompt": ...} or {"turns": [...]} a line (the first turn is taken); or `builtin`. Take
    others than those that will measure the heads. If not given, prompts are cut from the data, where it is not held
    out."""
    data: conf.OmitArgPrefixes[Data] = Data()
    samples: int = 1000
    """Texts to write; no more than there are prompts in a file of them."""
    prompt_tokens: int = 64
    """Tokens of a prompt that is cut from the data, at most; --seed decides where."""
    method: str | None = None
    """How to decode, which changes the speed only; the best trained head in the checkpoint if not given. `jaxspec
    methods` lists them."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams(max_new_tokens=256, temperature=1.0)
    greedy_tokens: int = 8
    """How many tokens of a text are greedy, the first ones, whatever the temperature of the others."""
    batch_size: int = 16
    """Texts written together."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "samples", "prompt_tokens", "batch_size")
        require(self, lambda value: value >= 0, "not be below 0", "greedy_tokens")
        require(self.sampling, lambda value: value >= 0, "not be below 0", "seed")
        require(self.sampling, lambda value: value >= 1, "be at least 1", "max_new_tokens")
