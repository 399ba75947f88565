"""Computes the cost of a drafted level, and of the rest of a round, from the times of whole rounds."""

import dataclasses

from jaxspec.costs.round_pieces import Job, levels_drafted, round_job
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation

TINY = 1e-9  # seconds: what noise hides is not nothing


@dataclasses.dataclass(frozen=True)
class RoundPair:
    """Two rounds of a method that differ in their levels alone: of one level, and of full depth.

    Attributes:
        nodes: that both verify.
        short, full: the two.
        short_levels, full_levels: that they draft. They are the same where the tree has one level, or goes no deeper
            on the text at hand; for `plain` both are 0.
    """

    nodes: int
    short: Job
    full: Job
    short_levels: int
    full_levels: int

    def split(self, short: float, full: float, verification: float) -> tuple[float, float]:
        """Seconds of a level, and of the rest of a round: commit, verdict, bookkeeping, what is learnt from tokens.

        Where the two rounds do not differ, the rest counts as the level's.

        Args:
            short, full: seconds of the two rounds.
            verification: seconds of a forward of the target over `nodes`.
        """
        further = self.full_levels - self.short_levels
        if further:
            level = max(full - short, TINY) / further
        else:
            level = max(short - verification, TINY) / self.short_levels if self.short_levels else 0.0
        return level, max(short - self.short_levels * level - verification, 0.0)


def round_pair(spec: Speculation, models: Models, state: DecodeState) -> RoundPair:
    """The rounds to time for a method; compiles them."""
    depth = spec.builder.depth

    def job(levels):
        return round_job(spec, models, state, levels)

    def drafted(levels):
        return levels_drafted(spec, models, state, levels)

    return RoundPair(max(spec.verify_sizes), job(min(depth, 1)), job(depth), drafted(min(depth, 1)), drafted(depth))
