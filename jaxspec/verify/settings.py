"""Options of `jaxspec verify`. Kept apart from the work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify:
    """Check on this model and device that methods change nothing of what the target says.

    For example: jaxspec verify --target tinyllama --methods all --minutes 30 --json verdict.json

    Greedy text, and sampled text of methods whose text plain decoding's seed determines, is compared with plain
    decoding's token by token; sampled text of the others with the target's probabilities, token by token. Prompts,
    batches, temperatures, budgets and the rest are drawn at random. Exit code 0: nothing unexplained was found; 1:
    something was, and the command that repeats it is printed.
    """

    target: Path
    """Checkpoint that `jaxspec-convert llama` made, or `builtin`."""
    methods: tuple[str, ...] = ("all",)
    """Methods DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; `plain` is always checked too. `all` stands for every head of the
    checkpoint and prompt lookup, with every builder and controller, in an order drawn by --seed: each part once first,
    then the other combinations for as long as --minutes last."""
    minutes: float = 10.0
    """Stop once this time is spent, but not before each method was checked once (with `all`: each part)."""
    seed: int = 0
    """Determines everything that is drawn."""
    json: Annotated[Path | None, conf.arg(aliases=["--out"])] = None
    """Write the verdict here, and beside it, in OUT.jsonl, every case as it is done. The same command goes on with a
    killed run; with more --minutes, with one that ended."""
    only: str | None = None
    """Repeat single cases, METHOD/KIND/NUMBER as a failure names them; numbers such as 0-7,9 stand for several."""
    prompts: Path = Path("builtin")
    """File of questions from which half of the prompts and the stop strings are cut, as for `bench`; the others are
    random tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and computation; float32 on a CPU and bfloat16 on an accelerator if not given."""
    quantize: Literal["int8", "int4"] | None = None
    """Make the target's kernels integers as they are read; text is compared with plain decoding of these."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()
