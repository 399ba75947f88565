"""Estimated seconds of a compiled program by the compiler's own cycle counts: an interval for each part of a round.

For most operations of a TPU's tensor core, XLA records an estimate of cycles. It records none for copies between main
and fast memory, which overlap with other operations, nor for messages, sorts, in-place updates and kernels. The lower
end of the interval assumes that all of these overlap, the upper end that none do.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jaxspec.model import attention_kernel
from jaxspec.planning import traffic
from jaxspec.planning.chips import Slice
from jaxspec.planning.hlo import CompiledProgram, Computation, Instruction
from jaxspec.planning.messages import message_of
from jaxspec.planning.phases import body_phase, phase_at
from jaxspec.planning.work import COMMIT, Collective, Phase

ESTIMATED, MESSAGE, COPY, UPDATE, SORT, KERNEL, OTHER = (
    "estimated", "message", "copy", "update", "sort", "kernel", "other"
)  # fmt: skip
"""Kinds of operations: those with cycles, and those without, by how they are priced."""

# Of the peak, what a kernel's products reach: attention of 512 queries over 2,048 rows is scheduled in 5,150 bundles of
# a v5e's core by the compiler's own listing, where its matrix units need 4,096 cycles. Its pipeline reads beside them.
KERNEL_SHARE = 0.8

VIEWS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "Sharding")
"""Custom calls that compute nothing, or next to nothing."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """Something that a program does, and how often.

    Attributes:
        kind: `ESTIMATED`, or how it is priced.
        times: that it runs in a round; in a level, where it is part of one.
        bytes: that it moves to and from main memory each time.
        flops: that a kernel says it takes each time.
        message: to other chips, of the kind `MESSAGE`.
        loop: the innermost that it is in; None: of a round.
    """

    phase: Phase
    kind: str
    times: int
    bytes: int
    message: Collective | None
    instruction: Instruction
    loop: Instruction | None = None
    flops: int = 0


@dataclasses.dataclass(frozen=True)
class Interval:
    """Seconds between two ends.

    Attributes:
        lower: everything overlaps: the longer of the estimated cycles and of all bytes at full bandwidth.
        upper: nothing does: the cycles, then what has no estimate, one after the other.
    """

    lower: float = 0.0
    upper: float = 0.0

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def times(self, number: int | float) -> "Interval":
        """So many of them, one after the other."""
        return Interval(self.lower * number, self.upper * number)

    def over(self, seconds: float) -> list[float]:
        """Both ends in units of so many seconds."""
        return [self.lower / seconds, self.upper / seconds]

    def ends(self) -> list[float]:
        """Lower and upper."""
        return [self.lower, self.upper]


def operations(program: CompiledProgram, where: Slice) -> list[Operation]:
    """What one round of a compiled loop does; one pass of a program that is no loop.

    A `while` that counts up to a constant runs that often, and any other once: drafting, whose levels are a phase of
    their own. Of the branches of a conditional the dearest counts, for each phase: verification of every size is one.
    """
    return list(_of(program, program.loop, where, 1, COMMIT))


def partly_filled(found: Iterable[Operation], share: float) -> list[Operation]:
    """The same operations where that share of the cache's rows is filled: a kernel over the prefix skips the others."""
    return [
        dataclasses.replace(each, bytes=round(each.bytes * share), flops=round(each.flops * share))
        if each.kind == KERNEL and f"/{attention_kernel.NAME}" in each.instruction.path
        else each
        for each in found
    ]


def _of(
    program: CompiledProgram,
    computation: Computation,
    where: Slice,
    times: int,
    phase: Phase,
    loop: Instruction | None = None,
) -> Iterator[Operation]:
    """What a computation does that runs so often; `phase` is of what comes before the first that has a path."""
    for each in computation.instructions:
        phase = phase_at(each, phase)
        inside = partial(_inside, program, where, phase=phase, loop=loop)
        if each.opcode == "while":
            trips, begins = times * (program.trips(each) or 1), body_phase(program, each) or phase
            yield from inside(each.runs["condition"], trips, loop=each)
            yield from inside(each.runs["body"], trips, phase=begins, loop=each)
        elif each.opcode == "conditional":
            yield from _dearest([list(inside(name, times)) for name in each.branches], where)
        elif each.opcode == "call":
            yield from inside(each.runs["to_apply"], times)
        elif found := _operation(program, computation, each, phase, times):
            yield dataclasses.replace(found, loop=loop)


def _inside(program: CompiledProgram, where: Slice, name: str, times: int, **known: Any) -> Iterator[Operation]:
    return _of(program, program.computations[name], where, times, **known)


def _operation(
    program: CompiledProgram, computation: Computation, each: Instruction, phase: Phase, times: int
) -> Operation | None:
    """What one instruction does; None if that is nothing."""
    if each.opcode in traffic.FREE or each.opcode.endswith(("-done", "-update")) or each.target in VIEWS:
        return None
    message = message_of(each)
    kind = MESSAGE if message else ESTIMATED if each.cycles is not None else _kind(each)
    moved = 0 if message else traffic.moved(program, computation, each)
    return Operation(phase, kind, times, moved, message, each, flops=each.flops)


def _kind(each: Instruction) -> str:
    if each.opcode.startswith(("copy", "slice-start", "async")):
        return COPY
    if each.opcode in traffic.UPDATES:
        return UPDATE
    return {"sort": SORT, "custom-call": KERNEL}.get(each.opcode, OTHER)


def _dearest(branches: Sequence[list[Operation]], where: Slice) -> Iterator[Operation]:
    """In each phase the branch that takes longest, at worst."""
    for phase in dict.fromkeys(each.phase for branch in branches for each in branch):
        own = [[each for each in branch if each.phase == phase] for branch in branches]
        yield from max(own, key=lambda some: sum(seconds(each, where) for each in some))


def seconds(operation: Operation, where: Slice) -> float:
    """All the times that it runs, with nothing beside it."""
    each, chip = operation.instruction, where.chip
    match operation.kind:
        case "message":
            assert operation.message is not None
            once = where.communication(operation.message)
        case "estimated":
            assert chip.clock is not None, "no compiler but a TPU's estimates cycles"
            once = (each.cycles or 0) / chip.clock
        case "sort":
            once = _sort_passes(each) * sum(result.bytes for result in each.results) / chip.bandwidth
        case _:
            once = max(operation.bytes / chip.bandwidth, operation.flops / (KERNEL_SHARE * chip.flops))
    return operation.times * once


def _sort_passes(each: Instruction) -> int:
    """Of a bitonic sort over everything that is sorted at once."""
    axis = int(each.line.split("dimensions={")[1].split("}")[0])
    bits = max(1, (each.results[0].shape[axis] - 1).bit_length())
    return bits * (bits + 1) // 2


def interval(found: Iterable[Operation], where: Slice) -> Interval:
    """Seconds of these operations, one after the other."""
    found = list(found)
    total = sum((seconds(each, where) for each in found), 0.0)
    cycles = sum((seconds(each, where) for each in found if each.kind == ESTIMATED), 0.0)
    moved = sum(each.times * each.bytes for each in found) / where.chip.bandwidth
    cycles += sum(each.times * each.flops for each in found) / (KERNEL_SHARE * where.chip.flops)
    return Interval(max(cycles, moved), max(total, moved))


def coverage(found: Iterable[Operation]) -> float:
    """Share of the bytes moved that belong to operations with an estimate; 0 where nothing is moved."""
    by_kind = bytes_by_kind(found)
    return by_kind.get(ESTIMATED, 0) / total if (total := sum(by_kind.values())) else 0.0


def bytes_by_kind(found: Iterable[Operation]) -> Mapping[str, int]:
    """Bytes that operations of each kind move."""
    totals: dict[str, int] = {}
    for each in found:
        totals[each.kind] = totals.get(each.kind, 0) + each.times * each.bytes
    return totals


def of_phase(found: Iterable[Operation], *phases: Phase) -> list[Operation]:
    """Those of some phases."""
    return [each for each in found if each.phase in phases]
