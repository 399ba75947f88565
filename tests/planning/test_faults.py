"""Faults of a compiled loop, each in a program that has it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxspec.planning import faults
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.estimate import operations
from jaxspec.planning.hlo import CompiledProgram

WHERE = parse_slice("v5e:2x2")
ROWS, VOCABULARY = 4096, 32000

PROGRAM = """
%moved (p: bf16[1,1,4096,128]) -> bf16[1,1,128,4096] {{
  %p = bf16[1,1,4096,128]{{3,2,1,0}} parameter(0)
  ROOT %turned = bf16[1,1,128,4096]{{3,2,1,0}} transpose(%p), dimensions={{0,1,3,2}}
}}

%put (p: bf16[1,1,4096,128], q: bf16[1,1,1,128]) -> bf16[1,1,4096,128] {{
  %old = bf16[1,1,4096,128]{{3,2,1,0}} parameter(0)
  %new = bf16[1,1,1,128]{{3,2,1,0}} parameter(1)
  ROOT %in = bf16[1,1,4096,128]{{3,2,1,0}} dynamic-update-slice(%old, %new)
}}

%until (c: (s32[])) -> pred[] {{
  %c = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %bound = s32[] constant(64)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}}

%row (d: (s32[])) -> (s32[]) {{
  %d = (s32[]) parameter(0)
  %j = s32[] get-tuple-element(%d), index=0
  %step = s32[] add(%j, %j)
  ROOT %t = (s32[]) tuple(%step)
}}

%body (q: (bf16[1,1,4096,128])) -> (bf16[1,1,4096,128]) {{
  %q = (bf16[1,1,4096,128]{{3,2,1,0}}, bf16[8,8000]{{1,0}}, bf16[1,1,1,128]{{3,2,1,0}}) parameter(0)
  %cache = bf16[1,1,4096,128]{{3,2,1,0}} get-tuple-element(%q), index=0
  %logits = bf16[8,8000]{{1,0}} get-tuple-element(%q), index=1
  %one = bf16[1,1,1,128]{{3,2,1,0}} get-tuple-element(%q), index=2
  %kept = bf16[1,1,4096,128]{{3,2,1,0}} fusion(%cache, %one), kind=kLoop, calls=%put
  {fault}
  ROOT %r = (bf16[1,1,4096,128]{{3,2,1,0}}, bf16[8,8000]{{1,0}}) tuple(%kept, %logits)
}}

ENTRY %main (p: bf16[1,1,4096,128]) -> bf16[1,1,4096,128] {{
  %first = (bf16[1,1,4096,128]{{3,2,1,0}}) parameter(0)
  ROOT %while = (bf16[1,1,4096,128]{{3,2,1,0}}) while(%first), condition=%until, body=%body
}}
"""


def found_in(fault: str) -> list[str]:
    program = CompiledProgram.parse(PROGRAM.format(fault=fault))
    mesh = AbstractMesh((4,), ("kv",), axis_types=(AxisType.Auto,))
    cache = jax.ShapeDtypeStruct(
        (1, 4, ROWS, 128), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(None, "kv"))
    )
    done = operations(program, WHERE)
    return [
        *faults.gathered(program, [cache], VOCABULARY),
        *faults.copied(program, done, [cache]),
        *faults.serial_loops(done),
        *faults.sorted_vocabularies(done, VOCABULARY // 4),
        *faults.held_scores(done, ROWS, [cache]),
    ]


def test_a_cache_that_is_written_in_place_is_no_fault():
    assert found_in("") == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%g = bf16[1,4,4096,128]{3,2,1,0} all-gather(%cache), dimensions={1}", "all-gather of bf16[1, 4, 4096, 128]"),
        ("%g = bf16[8,32000]{1,0} all-gather(%logits), dimensions={1}", "all-gather of bf16[8, 32000]"),
        ("%m = bf16[1,1,128,4096]{3,2,1,0} fusion(%cache), kind=kLoop, calls=%moved", "as large as a weight or cache"),
        ("%m = bf16[1,1,4096,128]{3,2,1,0} copy(%cache)", "copy writes bf16[1, 1, 4096, 128]"),
        (
            '%w = (s32[]) while(%q), condition=%until, body=%row, metadata={op_name="jit(f)/while/body/scatter"}',
            "a sequential loop of 64 iterations",
        ),
        ("%s = bf16[8,8000]{1,0} sort(%logits), dimensions={1}, to_apply=%row", "sort of bf16[8, 8000]"),
        ("%s = f32[16,8,60,4096]{3,2,1,0} exponential(%logits)", "f32[16, 8, 60, 4096] of scores in main memory"),
    ],
)
def test_each_fault_is_named(line: str, says: str):
    (only,) = found_in(line)
    assert says in only


@pytest.mark.parametrize(
    "line",
    [
        "%m = bf16[1,1,4096,128]{3,2,1,0:S(1)} copy(%cache)",  # read ahead
        '%w = (s32[]) while(%q), condition=%until, body=%row, metadata={op_name="jit(f)/while"}',  # written so
        "%s = bf16[8,1000]{1,0} sort(%logits), dimensions={1}, to_apply=%row",
        f"%s = f32[16,8,60,{ROWS}]{{3,2,1,0:S(1)}} exponential(%logits)",
        "%sum = bf16[1,4,4096,128]{3,2,1,0} all-reduce(%cache)",
    ],
)
def test_what_only_looks_like_one(line: str):
    assert found_in(line) == []
