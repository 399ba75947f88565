"""Options of `jaxspec verify`. This module does not import JAX, so `--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify:
    """Check on this model and device that no method changes the target's text.

    For example: jaxspec verify --target tinyllama --methods all --minutes 30 --json verdict.json

    It compares greedy text with plain decoding's, token by token. It compares sampled text of trees with plain
    decoding's for the same seed, and sampled text of chains with the target's probabilities. Prompts, batches,
    temperatures and token budgets are random. Exit code 0: no unexplained difference. Exit code 1: a failure; the
    command that repeats it is printed.
    """

    target: Path
    """Checkpoint made by `jaxspec-convert llama`, or `builtin`."""
    methods: tuple[str, ...] = ("all",)
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]. `plain` is always checked too. `all` means prompt lookup, every
    head of the checkpoint, and history beside the best of them, with every builder and controller, in a random order:
    first combinations that cover every part, then others until --minutes are spent."""
    minutes: float = 10.0
    """Stop after this time, but not before each method (with `all`: each part) was checked once."""
    seed: int = 0
    """Seed of all random choices."""
    json: Annotated[Path | None, conf.arg(aliases=["--out"])] = None
    """Write the verdict to this file. OUT.jsonl beside it gets every finished case. The same command resumes a killed
    run; with more --minutes it extends a finished one."""
    only: str | None = None
    """Repeat single cases, named METHOD/KIND/NUMBER as in a failure. NUMBER can be a list such as 0-7,9."""
    prompts: Path = Path("builtin")
    """File of questions, as in `bench`. Half of the prompts, and the stop strings, are pieces of these questions; the
    other prompts are random tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Dtype of weights and computation. Default: float32 on a CPU, bfloat16 on an accelerator."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights while loading. The reference is plain decoding with the quantised weights."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
