"""The work of each part of a round on each chip. Parts are the named scopes of `loop`, in traced and in compiled
programs."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from jaxspec.decoding.loop import DRAFTING, LEVEL, VERIFICATION
from jaxspec.decoding.prefill import FIRST_TOKEN

COMMIT = "commit"
Phase = str  # DRAFTING, LEVEL, COMMIT, or VERIFICATION and the number of nodes; in prefill FIRST_TOKEN or COMMIT

_SCOPE = re.compile(rf"(?:^|/)({DRAFTING}|{LEVEL}|{FIRST_TOKEN}|{VERIFICATION}\d+)(?=/|$)")


def phase_of(path: str) -> Phase:
    """The innermost scope of a path such as `jit(decode)/while/body/draft/while/body/level/dot_general`."""
    found = _SCOPE.findall(path)
    return found[-1] if found else COMMIT


@dataclasses.dataclass(frozen=True)
class Collective:
    """Equal messages among chips.

    Attributes:
        kind: the name in HLO: `all-reduce`, `all-gather`, …
        bytes: bytes of the result on a chip; for a reduce-scatter, of the input.
        count: number of messages; a fraction for a mean over rounds.
        chips: number of chips in each group that communicates; None: all chips.
    """

    kind: str
    bytes: int
    count: int | float = 1
    chips: int | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """Floating-point operations of products, bytes of main memory, and messages, on each chip."""

    flops: int | float = 0
    bytes: int | float = 0
    collectives: tuple[Collective, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes, merged((*self.collectives, *other.collectives)))

    def times(self, number: int | float) -> "Work":
        """The work of `number` repetitions."""
        many = (dataclasses.replace(each, count=each.count * number) for each in self.collectives if number)
        return Work(self.flops * number, self.bytes * number, tuple(many))


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Equal messages counted together, those with the most bytes first."""
    counts: dict[Collective, int | float] = {}
    for each in collectives:
        one = dataclasses.replace(each, count=1)
        counts[one] = counts.get(one, 0) + each.count
    found = [dataclasses.replace(one, count=count) for one, count in counts.items()]
    return tuple(sorted(found, key=lambda each: (-each.bytes * each.count, each.kind)))


@dataclasses.dataclass(frozen=True)
class Parts:
    """The work of each part of a round.

    Attributes:
        draft: drafting without the levels after the first: the drafter's pass over new tokens, and the first level.
        level: one further level.
        verify: verification, by the number of nodes.
        commit: the verdict, and appending the accepted tokens.
    """

    draft: Work
    level: Work
    verify: Mapping[int, Work]
    commit: Work

    @classmethod
    def gather(cls, works: Mapping[Phase, Work]) -> "Parts":
        """The parts, from the work of each phase."""
        sizes = {int(phase.removeprefix(VERIFICATION)): work for phase, work in works.items() if phase[-1].isdigit()}

        def of(phase):
            return works.get(phase, Work())

        return cls(draft=of(DRAFTING), level=of(LEVEL), verify=dict(sorted(sizes.items())), commit=of(COMMIT))

    def phases(self) -> dict[Phase, Work]:
        """The work of each phase: the inverse of `gather`."""
        verify = {f"{VERIFICATION}{size}": work for size, work in self.verify.items()}
        return {DRAFTING: self.draft, LEVEL: self.level, **verify, COMMIT: self.commit}

    def with_messages(self, messages: Mapping[Phase, tuple[Collective, ...]]) -> "Parts":
        """The same work with the compiled program's messages."""
        of = lambda phase, work: dataclasses.replace(work, collectives=messages.get(phase, ()))
        return Parts.gather({phase: of(phase, work) for phase, work in self.phases().items()})

    def size(self, nodes: int | float) -> int:
        """The smallest compiled tree size that holds this many nodes."""
        return min((size for size in self.verify if size >= nodes), default=max(self.verify))

    def drafting(self, levels: int | float) -> Work:
        """The work of drafting this many levels."""
        return self.draft + self.level.times(max(levels - 1, 0)) if levels else Work()

    def verification(self, nodes: int | float) -> Work:
        """The work of verifying and committing this many nodes, at the smallest compiled size that holds them."""
        return self.verify[self.size(nodes)] + self.commit

    def phases_of(self, part: str, levels: int | float, nodes: int | float) -> dict[Phase, int | float]:
        """How often each phase runs in the `draft` or the `verify` part of a round."""
        if part == "draft":
            return {DRAFTING: 1, LEVEL: max(levels - 1, 0)} if levels else {}
        return {f"{VERIFICATION}{self.size(nodes)}": 1, COMMIT: 1}
