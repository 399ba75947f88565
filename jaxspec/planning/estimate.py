"""Estimated seconds of a compiled program, by XLA's cycle counts: an interval for each part of a round.

For most operations of a TPU's tensor core, XLA records an estimate of cycles, but not for copies between main and fast
memory, messages, sorts, in-place updates and kernels. The lower end of the interval assumes that all of these overlap
with other operations, the upper end that none do. Between them is the time as scheduled, in which an asynchronous copy
or message overlaps with the operations between its start and its end."""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxspec.model import attention_kernel
from jaxspec.planning import traffic
from jaxspec.planning.chips import Chip, Collective, Slice
from jaxspec.planning.counting import COMMIT, Phase, phase_of
from jaxspec.planning.hlo import CompiledProgram, Computation, Instruction
from jaxspec.planning.traffic import message_of

ESTIMATED, MESSAGE, COPY, UPDATE, SORT, KERNEL, OTHER = (
    "estimated", "message", "copy", "update", "sort", "kernel", "other"
)  # fmt: skip
"""Kinds of operations: `ESTIMATED` ones have cycles; for the others, the kind decides how their time is computed."""

# Share of peak compute that a kernel reaches. For attention of 512 queries over 2,048 rows on a v5e, the compiler's
# listing has 5,150 bundles, and the matrix units need 4,096 cycles. Memory reads are pipelined beside them.
KERNEL_SHARE = 0.8

KINDS = {"sort": SORT, "custom-call": KERNEL, **dict.fromkeys(traffic.UPDATES, UPDATE)}
VIEWS = ("ConcatBitcast", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "Sharding")
"""Custom calls that compute almost nothing."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a program, and how often it runs."""

    phase: Phase
    kind: str
    times: int  # runs in a round; for an operation of a level, in a level
    bytes: int  # to and from main memory in each run
    flops: int  # a kernel's declared operations in each run
    once: float  # seconds of a run if nothing overlaps with it
    message: Collective | None  # of all runs, if the kind is `MESSAGE`
    instruction: Instruction
    loop: Instruction | None  # the innermost loop inside a round that contains it
    waited: float | None = None  # seconds of a run that the program waits for it, if it is asynchronous

    @property
    def seconds(self) -> float:
        """Seconds that all runs add; of an asynchronous one, only those that the program waits for it."""
        return self.times * (self.once if self.waited is None else self.waited)


class Interval(NamedTuple):
    """An estimated time in seconds, or a ratio of two."""

    lower: float = 0.0  # everything overlaps: the longer of the estimated cycles and of all bytes at full bandwidth
    # The cycles, plus the times of operations without an estimate; of asynchronous ones only while the program waits.
    scheduled: float = 0.0
    upper: float = 0.0  # nothing overlaps: the cycles, plus the whole times of all operations without an estimate

    def times(self, number: int | float) -> "Interval":
        return Interval(*(number * each for each in self))

    @property
    def ends(self) -> list[float]:
        return [self.lower, self.upper]


@dataclasses.dataclass
class Schedule:
    """Copies and messages under way while the operations of one computation run in order.

    Copies run one after another, while the running operation leaves main memory idle; messages too run one by one.
    """

    bandwidth: float  # bytes per second of main memory
    clock: float = 0.0  # seconds since the computation began
    linked: float = 0.0  # on this clock: when the links have sent all messages so far
    copies: deque[tuple[str, float]] = dataclasses.field(default_factory=deque)  # names and remaining bytes
    messages: dict[str, float] = dataclasses.field(default_factory=dict)  # when each message ends, by name

    def start_message(self, name: str, seconds: float) -> None:
        """Starts a message that takes `seconds` once those before it are sent."""
        self.linked = max(self.linked, self.clock) + seconds
        self.messages[name] = self.linked

    def run(self, seconds: float, moved: int = 0) -> None:
        """Runs an operation that itself moves `moved` bytes; copies under way use the time that these leave."""
        self.clock += seconds
        room = seconds * self.bandwidth - moved
        while self.copies and room > 0:
            name, left = self.copies.popleft()
            if left > room:
                self.copies.appendleft((name, left - room))
            room -= left

    def wait(self, name: str) -> float:
        """Waits for a copy or message. Returns the seconds that this takes; 0 if it is done or was never started."""
        if name in self.messages:
            seconds = max(0.0, self.messages.pop(name) - self.clock)
        else:
            names = [each for each, _ in self.copies]
            ahead = list(self.copies)[: names.index(name) + 1] if name in names else []
            seconds = sum(left for _, left in ahead) / self.bandwidth
        self.run(seconds)
        return seconds


@dataclasses.dataclass(frozen=True)
class _Reader:
    program: CompiledProgram
    where: Slice
    filled: float

    def read(
        self, computation: Computation, times: int, phase: Phase, loop: Instruction | None = None
    ) -> Iterator[Operation]:
        """Operations of a computation that runs `times` times. `phase` applies until an instruction has a path."""
        # Copies under way pause while a called computation runs, which may use all bandwidth.
        computations = self.program.computations
        schedule, started = Schedule(self.where.chip.bandwidth), dict[str, Operation]()
        for each in computation.instructions:
            if each.path and each.opcode not in traffic.FREE:  # a copy that the compiler added has no path
                phase = phase_of(each.path)
            if each.opcode == "while":
                trips, begins = times * (self.program.trips(each) or 1), self.body_phase(each) or phase
                yield from self.read(computations[each.runs["condition"]], trips, phase, each)
                yield from self.read(computations[each.runs["body"]], trips, begins, each)
            elif each.opcode == "conditional":
                branches = [list(self.read(computations[name], times, phase, loop)) for name in each.branches]
                yield from _slowest(branches)
            elif each.opcode == "call":
                yield from self.read(computations[each.runs["to_apply"]], times, phase, loop)
            elif each.opcode.endswith(("-done", "-update")):
                found = started.pop(each.operands[0], None) if each.operands else None
                if found and each.opcode.endswith("-update"):
                    started[each.name] = found
                elif found:
                    yield _awaited(found, schedule, phase)
            elif found := self.operation(computation, each, times, phase, loop):
                if not each.opcode.endswith("-start"):
                    schedule.run(found.seconds / times, found.bytes)
                    yield found
                    continue
                started[each.name] = found
                if found.message:
                    schedule.start_message(each.name, found.once)
                else:
                    schedule.copies.append((each.name, found.bytes))
        yield from (_awaited(found, schedule, phase) for found in started.values())

    def operation(
        self, computation: Computation, each: Instruction, times: int, phase: Phase, loop: Instruction | None
    ) -> Operation | None:
        """The operation of one instruction; None if it costs nothing."""
        if each.opcode in traffic.FREE or each.target in VIEWS:
            return None
        message, chip = message_of(each), self.where.chip
        other = COPY if each.opcode.startswith(("copy", "slice-start", "async")) else KINDS.get(each.opcode, OTHER)
        kind = MESSAGE if message else other if each.cycles is None else ESTIMATED
        moved, flops = 0 if message else traffic.moved(self.program, computation, each), each.flops
        if kind == KERNEL and f"/{attention_kernel.NAME}" in each.path:
            moved, flops = round(moved * self.filled), round(flops * self.filled)
        if message:
            once = self.where.communication(message)
        elif each.cycles is not None:
            assert chip.clock is not None, "only the TPU's compiler estimates cycles"
            once = each.cycles / chip.clock
        elif kind == SORT:
            once = _sort_passes(each) * each.bytes / chip.bandwidth
        else:
            once = max(moved / chip.bandwidth, flops / (KERNEL_SHARE * chip.flops))
        sent = message and dataclasses.replace(message, count=times)
        return Operation(phase, kind, times, moved, flops, once, sent, each, loop)

    def body_phase(self, loop: Instruction) -> Phase | None:
        """The phase in which the body of a loop begins; None if no instruction in it has a scope."""
        body = self.program.computations[loop.runs["body"]]
        inner = (each.path for each in body.instructions if loop.path and each.path.startswith(f"{loop.path}/"))
        return next(map(phase_of, inner), None)


def operations(program: CompiledProgram, where: Slice, filled: float = 1.0) -> list[Operation]:
    """Operations of one round of a compiled loop, or of one run of a program without a loop.

    A `while` that counts to a constant runs that often. Any other `while` counts once: it is the loop of drafting, and
    its levels are a phase of their own. For a conditional, each phase counts its slowest branch. An asynchronous
    operation counts where the program waits for it. `filled` is the share of the cache that the attention kernel reads.
    """
    return list(_Reader(program, where, filled).read(program.loop, 1, COMMIT))


def _awaited(started: Operation, schedule: Schedule, phase: Phase) -> Operation:
    """An asynchronous operation at its end; without a path of its own it belongs to the phase that waits for it."""
    phase = started.phase if started.instruction.path else phase
    return dataclasses.replace(started, phase=phase, waited=schedule.wait(started.instruction.name))


def _slowest(branches: Sequence[list[Operation]]) -> Iterator[Operation]:
    """For each phase, the operations of the branch with the longest time as scheduled."""
    for phase in dict.fromkeys(each.phase for branch in branches for each in branch):
        yield from max((of_phase(branch, phase) for branch in branches), key=lambda own: sum(e.seconds for e in own))


def _sort_passes(each: Instruction) -> int:
    """Number of passes of a bitonic sort along the sorted axis."""
    axis = int(each.line.split("dimensions={")[1].split("}")[0])
    bits = max(1, (each.results[0].shape[axis] - 1).bit_length())
    return bits * (bits + 1) // 2


def interval(found: Iterable[Operation], chip: Chip) -> Interval:
    """Estimated seconds of these operations together."""
    found = list(found)
    scheduled = sum((each.seconds for each in found), 0.0)
    alone = sum((each.times * each.once for each in found), 0.0)
    cycles = sum((each.seconds for each in found if each.kind == ESTIMATED), 0.0)
    moved = sum(each.times * each.bytes for each in found) / chip.bandwidth
    cycles += sum(each.times * each.flops for each in found) / (KERNEL_SHARE * chip.flops)
    lower = max(cycles, moved)
    return Interval(lower, max(lower, scheduled), max(lower, scheduled, alone))


def coverage(found: Iterable[Operation]) -> float:
    """Share of all bytes that operations with an estimate move; 0 if no bytes are moved."""
    moved = [(each.times * each.bytes, each.kind == ESTIMATED) for each in found]
    total = sum(size for size, _ in moved)
    return sum(size for size, estimated in moved if estimated) / total if total else 0.0


def of_phase(found: Iterable[Operation], *phases: Phase) -> list[Operation]:
    """The operations of some phases."""
    return [each for each in found if each.phase in phases]
