"""The command `jaxspec bench`: its options. Kept apart from its work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Bench:
    """Time methods against plain decoding on a file of prompts, all in one process and taking turns.

    For example: jaxspec bench --target tinyllama --methods ngram draft-model+chain --prompts questions.jsonl
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    methods: tuple[str, ...]
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; `plain`, the reference, always runs too."""
    prompts: Path
    """JSONL file of questions: {"turns": [...]} or {"prompt": ...} a line; or `builtin`."""
    limit: int | None = None
    """Take only the first questions."""
    max_new_tokens: int = 128
    """Tokens generated for each turn, at most."""
    temperature: float = 0.0
    """0 is greedy, and then every text is compared with plain decoding's."""
    top_p: float = 1.0
    """Sample from the likeliest tokens that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0: from all."""
    seed: int = 0
    """Of the sampling."""
    batch_size: int = 1
    """Questions decoded together."""
    repeats: int = 3
    """Timed passes of every method over every question; times are medians."""
    keep_state: bool = False
    """A controller that learns goes on from the question before, row by row; each timed pass by itself."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    json: Path | None = None
    """Write the results here, and beside it, in OUT.jsonl, every answer as it comes; a killed run resumes from it."""
    chat: bool = False
    """Put the turns through the tokenizer's chat template."""

    def run(self) -> None:
        from jaxspec.evaluate.bench import run

        run(self)
