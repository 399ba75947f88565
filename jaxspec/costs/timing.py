"""Median times of jobs that alternate."""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

from jaxspec.costs.jobs import Job, levels_drafted, round_job
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation
from jaxspec.host.processes import largest

REPEATS = 7
LEAST_SECONDS = 0.1  # duration of one timed call
MOST_ITERATIONS = 2**20
_TINY = 1e-9


def seconds_per_unit(jobs: Sequence[Job]) -> list[float]:
    """Median seconds per unit of each job. The jobs alternate, and the overhead of a call is subtracted.

    Several processes run the jobs together; the time of a call is that of the slowest process.
    """
    for job in jobs:
        job(0)  # compiles
    empty = [min(_timed(job, 0)[0] for _ in range(3)) for job in jobs]
    lengths = [_length(job, none) for job, none in zip(jobs, empty, strict=True)]
    samples: list[list[float]] = [[] for _ in jobs]
    for _ in range(REPEATS):
        for job, none, length, found in zip(jobs, empty, lengths, samples, strict=True):
            seconds, units = _timed(job, length)
            found.append(max(seconds - none, _TINY) / max(units, 1))
    return [statistics.median(found) for found in samples]


def _length(job: Job, none: float) -> int:
    """Number of iterations that take about LEAST_SECONDS, without the overhead `none` of a call.

    The faster of two calls counts, because the first call of a program can be very slow.
    """
    length = 2
    while length < MOST_ITERATIONS:
        seconds = min(_timed(job, length)[0] for _ in range(2)) - none
        if seconds >= LEAST_SECONDS / 2:
            break
        length = math.ceil(length * min(max(LEAST_SECONDS / max(seconds, _TINY), 2), 32))
    return length


def _timed(job: Job, iterations: int) -> tuple[float, int]:
    began = time.perf_counter()
    units = job(iterations)
    return largest(time.perf_counter() - began), units


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
