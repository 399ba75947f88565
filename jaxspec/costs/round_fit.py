"""Computes the cost of a drafted level, and of the rest of a round, from the times of whole rounds."""

import dataclasses

from jaxspec.costs.round_pieces import Job, levels_drafted, round_job
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation

TINY = 1e-9  # seconds; the smallest time of a level, if noise hides it


@dataclasses.dataclass(frozen=True)
class RoundPair:
    """Two rounds of a method that differ only in their levels: one level, and full depth.

    Attributes:
        nodes: number of nodes that both verify.
        short, full: jobs that time the two rounds.
        short_levels, full_levels: number of levels that they draft. They are equal if the tree has only one level, or
            grows no deeper on this text; for `plain` both are 0.
    """

    nodes: int
    short: Job
    full: Job
    short_levels: int
    full_levels: int

    def split(self, short: float, full: float, verification: float) -> tuple[float, float]:
        """Seconds of a level, and of the rest of a round: commit, verdict, bookkeeping, and the drafter's update.

        If the two rounds have the same levels, the rest counts as part of the level. A level never costs less than
        `TINY`: a DFlash head drafts a whole block in one pass, which is part of the rest, so noise can make the longer
        of the two rounds the faster.

        Args:
            short, full: seconds of the two rounds.
            verification: seconds of the verification of `nodes` nodes.
        """
        further = self.full_levels - self.short_levels
        if further:
            level = max(full - short, TINY) / further
        else:
            level = max(full - verification, TINY) / self.full_levels if self.full_levels else 0.0
        return level, max(full - self.full_levels * level - verification, 0.0)


def round_pair(spec: Speculation, models: Models, state: DecodeState) -> RoundPair:
    """The rounds to time for a method. It compiles them."""
    depth = spec.builder.depth

    def job(levels):
        return round_job(spec, models, state, levels)

    def drafted(levels):
        return levels_drafted(spec, models, state, levels)

    return RoundPair(max(spec.verify_sizes), job(min(depth, 1)), job(depth), drafted(min(depth, 1)), drafted(depth))
