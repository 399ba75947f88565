"""Adding up a compiled program: by hand, and on a loop that the compiler made."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxspec.decoding.prefill import FIRST_TOKEN
from jaxspec.model import attention_kernel
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.counting import COMMIT, phase_of
from jaxspec.planning.devices import tpus
from jaxspec.planning.estimate import ESTIMATED, KERNEL_SHARE, Schedule, coverage, interval, of_phase, operations
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.plan import filled_on_average
from jaxspec.planning.program import Compiled

WHERE = parse_slice("v5e:2x2")
CHIP = WHERE.chip

PROGRAM = """
%half (p: bf16[8,128], at: s32[]) -> bf16[4,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %taken = bf16[4,128]{1,0} dynamic-slice(%p, %at, %at), dynamic_slice_sizes={4,128}
}

%written (p: bf16[8,128], new: bf16[2,128], at: s32[]) -> bf16[8,128] {
  %p.1 = bf16[8,128]{1,0} parameter(0)
  %new = bf16[2,128]{1,0:S(1)} parameter(1)
  %at.1 = s32[] parameter(2)
  ROOT %put = bf16[8,128]{1,0} dynamic-update-slice(%p.1, %new, %at.1, %at.1)
}

%small (p: bf16[8,128]) -> bf16[8,128] {
  %p.2 = bf16[8,128]{1,0} parameter(0)
  ROOT %a = bf16[8,128]{1,0} add(%p.2, %p.2), op_name="jit(f)/verify4/add", {"estimated_cycles":"10"}
}

%large (p: bf16[8,128]) -> bf16[8,128] {
  %p.3 = bf16[8,128]{1,0} parameter(0)
  ROOT %b = bf16[8,128]{1,0} add(%p.3, %p.3), op_name="jit(f)/verify4/add", {"estimated_cycles":"90"}
}

%few (c: (s32[])) -> pred[] {
  %c = (s32[]) parameter(0)
  %bound = s32[] constant(6)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%row (d: (s32[])) -> (s32[]) {
  %d = (s32[]) parameter(0)
  %j = s32[]{:S(1)} get-tuple-element(%d), index=0
  %step = s32[]{:S(1)} add(%j, %j), backend_config={"estimated_cycles":"7"}
  ROOT %t = (s32[]) tuple(%step)
}

%many (c: (s32[])) -> pred[] {
  %c.1 = (s32[]) parameter(0)
  ROOT %on = pred[] custom-call(%c.1), custom_call_target="Sharding"
}

%level (e: (s32[])) -> (s32[]) {
  %e = (s32[]) parameter(0)
  %k = s32[]{:S(1)} get-tuple-element(%e), index=0
  %more = s32[]{:S(1)} add(%k, %k), op_name="jit(f)/draft/while/body/level/add", {"estimated_cycles":"1000"}
  ROOT %u = (s32[]) tuple(%more)
}

%body (q: (bf16[8,128])) -> (bf16[8,128]) {
  %q = (bf16[8,128]{1,0}, s32[]) parameter(0)
  %x = bf16[8,128]{1,0} get-tuple-element(%q), index=0
  %n = s32[]{:S(1)} get-tuple-element(%q), index=1
  %w = (s32[]) tuple(%n)
  %drafting = (s32[]) while(%w), condition=%many, body=%level, metadata={op_name="jit(f)/draft/while"}
  %ahead = ((bf16[8,128]{1,0}), bf16[8,128]{1,0:S(1)}, s32[]) slice-start(%x), metadata={op_name="jit(f)/verify4/dot"}
  %there = bf16[8,128]{1,0:S(1)} slice-done(%ahead)
  %fused = bf16[4,128]{1,0:S(1)} fusion(%x, %n), kind=kLoop, calls=%half, backend_config={"estimated_cycles":"100"}
  %either = bf16[8,128]{1,0} conditional(%n, %x, %x), branch_computations={%small, %large}
  %sum = bf16[8,128]{1,0:S(1)} all-reduce(%there), replica_groups={{0,1,2,3}}
  %rows = (s32[]) while(%w), condition=%few, body=%row, metadata={op_name="jit(f)/scatter"}
  %part = bf16[2,128]{1,0:S(1)} bitcast(%fused)
  %into = bf16[8,128]{1,0} fusion(%either, %part, %n), kind=kLoop, calls=%written
  ROOT %r = (bf16[8,128]{1,0}, s32[]) tuple(%into, %n)
}

ENTRY %main (p: bf16[8,128]) -> bf16[8,128] {
  %first = bf16[8,128]{1,0} parameter(0)
  %before = bf16[8,128]{1,0} add(%first, %first), backend_config={"estimated_cycles":"5000000"}
  %start = (bf16[8,128]{1,0}, s32[]) tuple(%before)
  ROOT %while = (bf16[8,128]{1,0}, s32[]) while(%start), condition=%many, body=%body, metadata={op_name="jit(f)/while"}
}
"""
ARRAY = 2 * 8 * 128  # bytes


def test_a_program_by_hand():
    found = operations(CompiledProgram.parse(PROGRAM), WHERE)
    assert CHIP.clock is not None
    took = lambda *phases: interval(of_phase(found, *phases), CHIP)
    # A level once, though their number is not in the program.
    assert took("level").upper == pytest.approx(1000 / CHIP.clock)
    # Of the branches the slower, which reads its operand twice and writes; half of an array by the fusion, which writes
    # to fast memory; one brought there; and a message.
    verifying = of_phase(found, "verify4")
    assert sum(each.bytes for each in verifying if each.kind == ESTIMATED) == 3 * ARRAY + ARRAY // 2
    assert sum(each.bytes for each in verifying if each.kind == "copy") == ARRAY
    message = WHERE.communication(next(each.message for each in verifying if each.message))
    cycles = (100 + 90) / CHIP.clock
    assert took("verify4").upper == pytest.approx(cycles + ARRAY / CHIP.bandwidth + message)
    assert took("verify4").lower == pytest.approx(max(cycles, 4.5 * ARRAY / CHIP.bandwidth))
    assert coverage(verifying) == pytest.approx(3.5 / 4.5)
    # A loop over rows as often as it runs; and of what is written in place only what is new, which it read before.
    serial = [each for each in found if each.times == 6 and each.kind == ESTIMATED]
    assert [each.instruction.name for each in serial] == ["step"]
    update = next(each for each in found if each.instruction.name == "into")
    assert (update.phase, update.kind, update.bytes) == ("commit", "other", ARRAY // 4)
    assert update.seconds == pytest.approx(ARRAY / 4 / CHIP.bandwidth)


SCHEDULED = """
ENTRY %main (a: bf16[8192,8192], b: bf16[8192,8192]) -> bf16[8192,8192] {
  %a = bf16[8192,8192]{1,0} parameter(0)
  %b = bf16[8192,8192]{1,0} parameter(1)
  %fast = bf16[8192,8192]{1,0:S(1)} constant(0)
  %one = (bf16[8192,8192]{1,0:S(1)}, bf16[8192,8192]{1,0}) copy-start(%a)
  %two = (bf16[8192,8192]{1,0:S(1)}, bf16[8192,8192]{1,0}) copy-start(%b)
  %sent = bf16[8192,8192]{1,0:S(1)} all-reduce-start(%fast), replica_groups={{0,1,2,3}}
  BETWEEN
  %a1 = bf16[8192,8192]{1,0:S(1)} copy-done(%one)
  %b1 = bf16[8192,8192]{1,0:S(1)} copy-done(%two), metadata={op_name="jit(f)/verify4/add"}
  %received = bf16[8192,8192]{1,0:S(1)} all-reduce-done(%sent)
  ROOT %sum = bf16[8192,8192]{1,0:S(1)} add(%a1, %b1), op_name="jit(f)/level/add", {"estimated_cycles":"30"}
}
"""


@pytest.mark.parametrize(
    ("source", "copies", "hidden"),
    [
        ("%fast", 0.0, 0.0),
        ("%fast", 1.5, 1.5),
        ("%a", 1.5, 0.5),  # it reads as much as one copy itself
        ("%fast", 100.0, 2.0),
    ],
)
def test_a_copy_overlaps_with_what_is_scheduled_between_its_ends(source: str, copies: float, hidden: float):
    """As far as main memory is idle meanwhile. A message overlaps with all of it, and with waiting for copies."""
    assert CHIP.clock is not None
    copy = 2 * 8192**2 / CHIP.bandwidth
    between = copies * copy
    line = f'%x = f32[2]{{0:S(1)}} add({source}, %fast), {{"estimated_cycles":"{between * CHIP.clock:.0f}"}}'
    found = operations(CompiledProgram.parse(SCHEDULED.replace("BETWEEN", line if copies else "")), WHERE)
    waited = [each.seconds for each in found if each.kind == "copy"]
    assert sum(waited) == pytest.approx((2 - hidden) * copy, rel=1e-4)
    message = next(each for each in found if each.message)
    assert message.message is not None
    left = WHERE.communication(message.message) - between - sum(waited)
    assert message.seconds == pytest.approx(max(0, left), rel=1e-4)
    # Each is of the phase in which it is needed. All bytes count for the lower end, and all times for the upper end.
    total = interval(found, CHIP)
    added = (30 / CHIP.clock + between) if copies else 30 / CHIP.clock
    assert total.upper == pytest.approx(added + 2 * copy + WHERE.communication(message.message), rel=1e-4)
    assert total.scheduled == pytest.approx(max(total.lower, added + sum(waited) + max(0, left)), rel=1e-4)
    assert [each.phase for each in found if each.kind == "copy"] == ["commit", "verify4"]
    assert interval(of_phase(found, "commit", "verify4"), CHIP).lower >= 2 * copy


def test_messages_are_sent_one_after_another():
    schedule = Schedule(bandwidth=1.0)
    schedule.start_message("a", 2.0)
    schedule.start_message("b", 3.0)
    schedule.run(1.0)
    assert (schedule.wait("b"), schedule.wait("a"), schedule.wait("unknown")) == (4.0, 0.0, 0.0)


KERNEL_LINE = (
    "%k = bf16[4,128]{1,0} custom-call(%first), custom_call_target="
    '"tpu_custom_call", metadata={op_name="jit(f)/verify4/SCOPE/pallas_call"}, '
    'backend_config={"custom_call_config":{"cost_estimate":{"flops":"FLOPS","transcendentals":"0"}}}'
)


@pytest.mark.parametrize("scope", [attention_kernel.NAME, "another"])
def test_a_kernel_takes_what_it_says_or_reads(scope: str):
    """And one that reads the filled rows of a cache less where fewer are filled; reading overlaps with computing."""

    def took(flops: int, filled: float) -> float:
        line = KERNEL_LINE.replace("SCOPE", scope).replace("FLOPS", str(flops))
        program = CompiledProgram.parse(PROGRAM[: PROGRAM.index("ENTRY")] + _entry(line))
        (kernel,) = [each for each in operations(program, WHERE, filled) if each.kind == "kernel"]
        assert interval([kernel], CHIP).upper == kernel.seconds == interval([kernel], CHIP).lower
        return kernel.seconds

    share = 0.5 if scope == attention_kernel.NAME else 1
    reading, flops = 1.5 * ARRAY / CHIP.bandwidth, 10**9
    assert took(0, 1.0) == pytest.approx(reading)
    assert took(0, 0.5) == pytest.approx(share * reading)
    assert took(flops, 0.5) == pytest.approx(share * flops / (KERNEL_SHARE * CHIP.flops))


def _entry(line: str) -> str:
    lines = ("ENTRY %main (p: bf16[8,128]) -> bf16[4,128] {", "  %first = bf16[8,128]{1,0} parameter(0)")
    return "\n".join([*lines, f"  ROOT {line}", "}", ""])


def test_chunks_of_prefill_read_what_is_there():
    """The rows before each chunk, in whole blocks of the kernel; no more than there are."""
    block = attention_kernel.BLOCK
    assert filled_on_average(512, 512, 4 * block) == 0
    assert filled_on_average(2 * block, block, 4 * block) == (0 + block) / 2 / (4 * block)
    assert filled_on_average(2 * block, block // 2, 4 * block) == (0 + 1 + 1 + 2) / 4 / 4
    assert filled_on_average(1024, 512, 1024) == 0.5


def test_the_first_token_is_drawn_once():
    """Apart from the chunks of prefill, of which only those that end a prompt draw one."""
    assert phase_of(f"jit(_read)/while/body/cond/branch_1_fun/{FIRST_TOKEN}/dot_general") == FIRST_TOKEN
    assert phase_of("jit(_read)/while/body/jit(decoder_layer)/dot_general") == COMMIT


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
@pytest.mark.parametrize("kind", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", pytest.param("v7x:2x2x1", marks=pytest.mark.soak)])
def test_a_product_bound_by_arithmetic_is_estimated_near_the_peak(kind: str):
    """So that cycles are those of a whole chip: of a v5p's cores, both."""
    where = parse_slice(kind)
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=SingleDeviceSharding(tpus(where)[0]))
    compiled = Compiled.of(jax.jit(lambda a, b: a @ b).trace(a, a), where)
    assert compiled is not None
    found = [each for each in compiled.operations if each.kind == ESTIMATED]
    least = 2 * 4096**3 / where.chip.flops
    assert 1 <= sum(each.seconds for each in found) / least < 1.7


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
def test_a_loop_that_the_compiler_made_is_its_body_so_many_times():
    device = SingleDeviceSharding(tpus(WHERE)[0])
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=device) for shape in ((64, 512), (512, 512)))

    def chained(count):
        def round_(carry):
            inner = jax.lax.fori_loop(0, count, lambda i, y: jnp.sin(y @ w_), carry[0])
            return inner, carry[1] + 1

        def run(x, w, rounds):
            nonlocal w_
            w_ = w
            return jax.lax.while_loop(lambda carry: carry[1] < rounds, round_, (x, 0))

        w_ = w
        rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=device)
        compiled = Compiled.of(jax.jit(run).trace(x, w, rounds), WHERE)
        assert compiled is not None
        found = [each for each in compiled.operations if each.times == count and each.kind == ESTIMATED]
        return sum(each.seconds for each in found)

    assert chained(12) == pytest.approx(2 * chained(6), rel=0.01)
    assert chained(6) > 0
