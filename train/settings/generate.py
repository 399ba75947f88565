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
    """Generate text with a target, as training data for its heads.

    The first tokens of a text are greedy, and the rest is sampled. A text ends at the end of the target's context at
    the latest. OUT is JSONL with {"text": ..., "prompt": ..., "complete": ...} per line, and appears only when it is
    complete. The same command resumes a killed run from OUT.part and writes the same bytes.

    For example: jaxspec-train generate --target builtin --out texts.jsonl --samples 64
    """

    target: Path
    """Checkpoint that generates, or `builtin`."""
    out: Path
    """File to make; must not exist."""
    prompts: Path | None = None
    """JSONL file of prompts, or `builtin`. Each line is {"prompt": ...} or {"turns": [...]}, whose first turn is used.
    Do not use the prompts that will measure the heads. Default: pieces of the data that is not held out."""
    data: conf.OmitArgPrefixes[Data] = Data()
    chat: bool = False
    """Generate the assistant's answers, with the tokenizer's chat template: to the prompts of --prompts, or to the
    first turns of the conversations in --data. OUT then has conversations: {"messages": ..., "complete": ...}."""
    samples: int = 1000
    """Texts to generate: at most one per prompt of --prompts."""
    prompt_tokens: int = 64
    """Largest number of tokens of a prompt cut from the data. --seed selects the places."""
    method: str | None = None
    """Method of decoding, which only changes the speed. `jaxspec methods` lists the parts. Default: the best trained
    head of the checkpoint."""
    sampling: conf.OmitArgPrefixes[SamplingParams] = SamplingParams(max_new_tokens=256, temperature=1.0)
    greedy_tokens: int = 8
    """Number of greedy tokens at the start of a text, at any temperature."""
    batch_size: int = 16
    """Texts decoded together."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    def __post_init__(self) -> None:
        require(self, lambda value: value >= 1, "be at least 1", "samples", "prompt_tokens", "batch_size")
        require(self, lambda value: value >= 0, "not be below 0", "greedy_tokens")
        require(self.sampling, lambda value: value >= 0, "not be below 0", "seed")
        require(self.sampling, lambda value: value >= 1, "be at least 1", "max_new_tokens")
