"""Two layers of a 70B on 16 chips: by the estimate near the floor, without faults or large temporaries.

Of 80 layers the ratios are smaller: `docs/compiled.md`.
"""

import dataclasses
import importlib.util

import pytest

from jaxspec.model import attention_kernel
from jaxspec.planning.chips import Work, parse_slice
from jaxspec.planning.estimate import COPY
from jaxspec.planning.faults import find_faults
from jaxspec.planning.shapes import MODELS
from tests.planning.placed import compiled, placed

WHERE = parse_slice("v5e:4x4")
SHAPE = dataclasses.replace(MODELS["llama-3.1-70b"], num_layers=2)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
@pytest.mark.parametrize(
    ("name", "batch", "rows", "levels", "nodes", "draft", "verify", "megabytes", "quantize", "split"),
    [
        ("plain", 1, 2048, 0, 1, None, 1.58, 6, None, 1),
        pytest.param("plain", 16, 2048, 0, 1, None, 1.58, 16, None, 1, marks=pytest.mark.soak),
        pytest.param("ngram+chain,length=4", 16, 8192, 0, 5, None, 1.76, 49, None, 1, marks=pytest.mark.soak),
        pytest.param("ngram+chain,length=4", 16, 8192, 0, 5, None, 1.72, 50, None, 2, marks=pytest.mark.soak),
        pytest.param("ngram+chain,length=4", 1, 2048, 0, 5, None, 3.22, 15, "int4", 1, marks=pytest.mark.soak),
        pytest.param("eagle+chain", 1, 2048, 4, 5, 1.43, 2.05, 157, None, 1, marks=pytest.mark.soak),
        pytest.param("eagle+eagle2", 1, 2048, 6, 60, 1.71, 2.67, 168, None, 1, marks=pytest.mark.soak),
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
    program = placed(SHAPE, str(WHERE), name, split=split, batch=batch, rows=rows, quantize=quantize)
    found = compiled(program, WHERE)
    assert find_faults(program, found) == []
    assert found.temporaries <= megabytes * 1e6
    if rows >= attention_kernel.LONG:
        copied = [each.instruction.results[0].shape for each in found.operations if each.kind == COPY]
        assert (batch, 1, rows, SHAPE.head_dim) not in copied, "values are copied before the kernel"
    for runs, most in ((program.parts.drafting(levels), draft), (program.parts.verification(nodes), verify)):
        if most is not None:
            work = program.parts.work(runs)
            assert found.seconds(runs).scheduled / WHERE.seconds(Work(work.flops, work.bytes)) <= most
