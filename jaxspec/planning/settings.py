"""The command `jaxspec plan`: its options. This module does not import JAX, so `--help` is fast."""

import dataclasses
from pathlib import Path
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Predict memory, time per round and speedup on chips that you do not have.

    For example: jaxspec plan --model llama-2-70b --method eagle+eagle2 --topology v5e:4x4 --tau 3.8

    For TPUs it compiles the decoding loop that would run there, without weights. This needs pip install
    'jax-specdec[tpu]' but no TPU. Memory and messages between chips come from the compiler. Each time has two values: a
    floor, which is the roofline by the chips' data sheets, and an estimate from the compiler's own cycle counts.
    Nothing is measured. For GPUs, after pip install 'jax-specdec[plan-cuda]', it compiles the loop without a GPU; this
    gives memory, messages and faults but no estimates. Without this package, all GPU values come from sizes and data
    sheets.
    """

    model: str
    """llama-2-7b, llama-2-13b, llama-2-70b, llama-3.1-8b, llama-3.1-70b, or a checkpoint. A head in the checkpoint has
    its own shape; any other head has the shape of its paper."""
    method: str
    """The method DRAFTER[@HEAD][+BUILDER][+CONTROLLER], such as plain or eagle+eagle2. Costs for `pruned` and
    `budgeted` are computed from the plan."""
    topology: str | None = None
    """TPU chips and their topology, such as v5e:4x4, v5p:2x2x2 or v6e:4x4."""
    device: str | None = None
    """GPUs in one machine, such as a100-80g:8 or h100-80g:8, instead of --topology."""
    batch_size: int = 1
    """Sequences decoded together."""
    context: int = 2048
    """Length of each sequence's cache, in tokens."""
    quantize: Literal["int8", "int4"] | None = None
    """Quantise the target's weights; heads stay in bfloat16. Default: as in a quantised checkpoint, else bfloat16."""
    mesh: str | None = None
    """data=N,model=M: shard the sequences N ways and the model M ways. data=N,model=M,rows=R: also split the rows of
    the cache R ways. Default: the model over all chips."""
    tau: str | None = None
    """Mean tokens per round, such as 3.8: at most one more than the drafted levels. Or a file written by `jaxspec bench
    --json`, which also gives the numbers of levels and nodes."""
    levels: float | None = None
    """Mean drafted levels per round, if --tau is a number. Default: the builder's full depth, which is far too many if
    a controller or the tree itself stops early."""
    prompt: int | None = None
    """Length of each prompt in tokens: plans prefill too."""
    explain: int = 0
    """Show this many operations of the compiled loop with the longest estimated times."""
    json: Path | None = None
    """Write the plan to this file."""
