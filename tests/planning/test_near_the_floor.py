"""Two layers of a 70B on 16 chips: by the estimate near the floor, without faults or large temporaries.

Of 80 layers the ratios are smaller: `docs/compiled.md`.
"""

import dataclasses
import importlib.util

import jax.numpy as jnp
import pytest

from jaxspec.engine.program import program_of
from jaxspec.methods.method import parse_method
from jaxspec.model import attention_kernel
from jaxspec.model.backend import ACCELERATOR_TREE_SIZES
from jaxspec.planning.chips import Work, parse_slice
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.estimate import COPY
from jaxspec.planning.faults import find_faults
from jaxspec.planning.program import Compiled, PlacedProgram
from jaxspec.planning.shapes import MODELS, Target, models_of

WHERE = parse_slice("v5e:4x4")
SHAPE = dataclasses.replace(MODELS["llama-3.1-70b"], num_layers=2)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
@pytest.mark.parametrize(
    ("name", "batch", "rows", "levels", "nodes", "draft", "verify", "megabytes", "quantize", "split"),
    [
        ("plain", 1, 2048, 0, 1, None, 1.58, 6, None, 1),
        pytest.param("plain", 16, 2048, 0, 1, None, 1.58, 16, None, 1, marks=pytest.mark.soak),
        ("ngram+chain,length=4", 16, 8192, 0, 5, None, 1.76, 49, None, 1),
        pytest.param("ngram+chain,length=4", 16, 8192, 0, 5, None, 1.72, 50, None, 2, marks=pytest.mark.soak),
        ("ngram+chain,length=4", 1, 2048, 0, 5, None, 3.22, 15, "int4", 1),
        ("eagle+chain", 1, 2048, 4, 5, 1.43, 2.05, 157, None, 1),
        ("eagle+eagle2", 1, 2048, 6, 60, 1.71, 2.67, 168, None, 1),
    ],
)
def test_the_estimate_stays_near_the_floor(
    name: str,
    batch: int,
    rows: int,
    levels: int,
    nodes: int,
    draft: float | None,
    verify: float,
    megabytes: float,
    quantize: str | None,
    split: int,
):
    """Bounds are a tenth above what XLA estimated when they were written, without options for TPUs."""
    method = parse_method(name)
    program = program_of(
        method,
        models_of(Target(SHAPE, quantize=quantize), method, jnp.dtype("bfloat16")),
        greedy=True,
        tree_sizes=ACCELERATOR_TREE_SIZES,
    )
    placed = PlacedProgram.place(program, batch, rows, mesh_on(WHERE, SHAPE, 1, WHERE.chips // split, split))
    traced = placed.trace()
    compiled = Compiled.of(traced, WHERE)
    assert compiled is not None
    assert find_faults(placed, compiled.program, compiled.operations) == []
    assert compiled.temporaries <= megabytes * 1e6
    if rows >= attention_kernel.LONG:
        copied = [each.instruction.results[0].shape for each in compiled.operations if each.kind == COPY]
        assert (batch, 1, rows, SHAPE.head_dim) not in copied, "values are copied before the kernel"
    parts = placed.count(traced)
    works = {"draft": parts.drafting(levels), "verify": parts.verification(nodes)}
    for part, most in (("draft", draft), ("verify", verify)):
        if most is not None:
            floor = WHERE.seconds(Work(works[part].flops, works[part].bytes))
            scheduled = compiled.seconds(parts.phases_of(part, levels, nodes)).scheduled
            assert scheduled / floor <= most
