"""The work of each part of a round on each chip. Parts are the named scopes of `loop`, in traced and in compiled
programs."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from jaxspec.decoding.loop import DRAFTING, LEVEL, VERIFICATION
from jaxspec.decoding.prefill import FIRST_TOKEN

COMMIT = "commit"
Phase = str  # DRAFTING, LEVEL, COMMIT, or VERIFICATION followed by the number of nodes; of prefill FIRST_TOKEN, COMMIT

_SCOPE = re.compile(rf"(?:^|/)({DRAFTING}|{LEVEL}|{FIRST_TOKEN}|{VERIFICATION}\d+)(?=/|$)")


def phase_of(path: str) -> Phase:
    """The innermost scope of a path such as `jit(decode)/while/body/draft/while/body/level/dot_general`."""
    found = _SCOPE.findall(path)
    return found[-1] if found else COMMIT


@dataclasses.dataclass(frozen=True)
class Collective:
    """A kind of message among chips.

    Attributes:
        kind: as HLO calls it: `all-reduce`, `all-gather`, …
        bytes: of its result on a chip; of a reduce-scatter, of what goes in.
        count: how many of them there are; of a mean over rounds, any number.
        chips: that talk with each other, in as many groups as there are of them; None: all chips.
    """

    kind: str
    bytes: int
    count: int | float = 1
    chips: int | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """Floating-point operations of products, bytes of memory read and written, and messages."""

    flops: int | float = 0
    bytes: int | float = 0
    collectives: tuple[Collective, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes, merged((*self.collectives, *other.collectives)))

    def times(self, number: int | float) -> "Work":
        """The same work so many times."""
        many = (dataclasses.replace(each, count=each.count * number) for each in self.collectives if number)
        return Work(self.flops * number, self.bytes * number, tuple(many))


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Those alike counted together, the most bytes first."""
    counts: dict[Collective, int | float] = {}
    for each in collectives:
        one = dataclasses.replace(each, count=1)
        counts[one] = counts.get(one, 0) + each.count
    found = [dataclasses.replace(one, count=count) for one, count in counts.items()]
    return tuple(sorted(found, key=lambda each: (-each.bytes * each.count, each.kind)))


@dataclasses.dataclass(frozen=True)
class Parts:
    """A round's work in parts, each once.

    Attributes:
        draft: drafting apart from its levels after the first: the root, and what is learnt from verified tokens.
        level: a further level.
        verify: by the number of nodes.
        commit: the verdict, and appending what was accepted.
    """

    draft: Work
    level: Work
    verify: Mapping[int, Work]
    commit: Work

    @classmethod
    def gather(cls, works: Mapping[Phase, Work]) -> "Parts":
        """The parts out of what each phase does."""
        sizes = {int(phase.removeprefix(VERIFICATION)): work for phase, work in works.items() if phase[-1].isdigit()}

        def of(phase):
            return works.get(phase, Work())

        return cls(draft=of(DRAFTING), level=of(LEVEL), verify=dict(sorted(sizes.items())), commit=of(COMMIT))

    def phases(self) -> dict[Phase, Work]:
        """Inverse of `gather`."""
        verify = {f"{VERIFICATION}{size}": work for size, work in self.verify.items()}
        return {DRAFTING: self.draft, LEVEL: self.level, **verify, COMMIT: self.commit}

    def with_messages(self, messages: Mapping[Phase, tuple[Collective, ...]]) -> "Parts":
        """The same work with the messages that were compiled."""
        of = lambda phase, work: dataclasses.replace(work, collectives=messages.get(phase, ()))
        return Parts.gather({phase: of(phase, work) for phase, work in self.phases().items()})

    def size(self, nodes: int | float) -> int:
        """The smallest size compiled that holds so many nodes."""
        return min((size for size in self.verify if size >= nodes), default=max(self.verify))

    def drafting(self, levels: int | float) -> Work:
        """Of a round that drafts so many levels."""
        return self.draft + self.level.times(max(levels - 1, 0)) if levels else Work()

    def verification(self, nodes: int | float) -> Work:
        """Of so many nodes, in the smallest size compiled that holds them; committing included."""
        return self.verify[self.size(nodes)] + self.commit

    def phases_of(self, part: str, levels: int | float, nodes: int | float) -> dict[Phase, int | float]:
        """How often each phase is in the `draft` or the `verify` part of a round."""
        if part == "draft":
            return {DRAFTING: 1, LEVEL: max(levels - 1, 0)} if levels else {}
        return {f"{VERIFICATION}{self.size(nodes)}": 1, COMMIT: 1}
