"""The command `jaxspec plan`: its options, apart from its work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Say whether a model fits on chips that are not at hand, what a round of decoding takes there, and what it gains.

    For example: jaxspec plan --model llama-2-70b --method eagle+eagle2 --topology v5e:4x4 --tau 3.8

    For TPUs the very loop that would run there is compiled (pip install 'jax-specdec[tpu]'; no TPU is needed), without
    any weights: memory and messages between chips are what the compiler says. Each time has a floor, the roofline by
    the chips' data sheets, and an estimate, by the compiler's own count of cycles. Nothing is measured. For GPUs
    the loop is compiled where pip install 'jax-specdec[plan-cuda]' was run (no GPU is needed), which tells memory,
    messages and faults but no times; elsewhere everything is computed from sizes and data sheets.
    """

    model: str
    """llama-2-7b, llama-2-13b, llama-2-70b, llama-3.1-8b or llama-3.1-70b; or a checkpoint, whose heads are then taken
    as they are. Heads that are not there have their paper's shape."""
    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as plain or eagle+eagle2. What `pruned` and `budgeted`
    need to know of costs is computed too."""
    topology: str | None = None
    """TPU chips and the grid that links them, such as v5e:4x4, v5p:2x2x2 or v6e:4x4."""
    device: str | None = None
    """Or GPUs in one box, such as a100-80g:8 or h100-80g:8."""
    batch_size: int = 1
    """Sequences decoded together."""
    context: int = 2048
    """Tokens that the cache of each has room for."""
    quantize: Literal["int8", "int4"] | None = None
    """Integers that the target's weights are rounded to; heads stay in bfloat16, as all does if not given, but for a
    checkpoint that is quantised already."""
    mesh: str | None = None
    """data=N,model=M: sequences cut N ways, the model M ways; model = all chips if not given."""
    tau: str | None = None
    """Tokens that a round commits, such as 3.8, at most one more than it drafts levels; or a file that `jaxspec bench
    --json` wrote, from which the number of levels and nodes is taken as well."""
    levels: float | None = None
    """Levels that a round drafts, on average, where --tau is no file; the builder's full depth if not given, which is
    far more than is drafted where a controller or the tree itself decides when to stop."""
    prompt: int | None = None
    """Tokens of each prompt: what reading them takes is planned too."""
    explain: int = 0
    """Show so many operations of the compiled loop, those that are estimated to take longest."""
    json: Path | None = None
    """Write all of it to this file."""
