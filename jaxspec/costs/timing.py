"""Median times of jobs that alternate."""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from jaxspec.costs.timed_loops import Job, round_job
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation
from jaxspec.host.processes import largest

REPEATS = 7
LEAST_SECONDS = 0.1  # duration of one timed call
MOST_ITERATIONS = 2**20
SPREAD = 2.5  # least ratio of two timed numbers of nodes
TINY = 1e-9  # seconds; the smallest time of an iteration or a level, if noise hides it


def seconds_per_iteration(jobs: Sequence[Job]) -> list[float]:
    """Median seconds per iteration of each job. The jobs alternate, and the overhead of a call is subtracted.

    Several processes run the jobs together; the time of a call is that of the slowest process.
    """
    for job in jobs:
        jax.block_until_ready(job(0))  # compiles
    empty = [min(_seconds(job, 0) for _ in range(3)) for job in jobs]
    timed = [(job, none, _length(job, none)) for job, none in zip(jobs, empty, strict=True)]
    rounds = [[max(_seconds(job, length) - none, TINY) / length for job, none, length in timed] for _ in range(REPEATS)]
    return list(map(statistics.median, zip(*rounds, strict=True)))


def _length(job: Job, none: float) -> int:
    """Number of iterations that take about LEAST_SECONDS, without the overhead `none` of a call.

    The faster of two calls counts, because the first call of a program can be very slow.
    """
    length = 1
    while length < MOST_ITERATIONS:
        seconds = min(_seconds(job, length) for _ in range(2)) - none
        if seconds >= LEAST_SECONDS / 2:
            break
        length = math.ceil(length * min(max(LEAST_SECONDS / max(seconds, TINY), 2), 32))
    return length


def _seconds(job: Job, iterations: int) -> float:
    began = time.perf_counter()
    jax.block_until_ready(job(iterations))
    return largest(time.perf_counter() - began)


def spread(sizes: Iterable[int]) -> list[int]:
    """Some of these numbers of nodes, the smallest and the largest among them. Others' times are interpolated, because
    a program of each would take seconds to compile."""
    ascending, found = sorted({*sizes}), list[int]()
    for size in ascending:
        if not found or size >= SPREAD * found[-1] or size == ascending[-1]:
            found.append(size)
    return found


def interpolated(seconds: Mapping[int, float], sizes: Iterable[int]) -> dict[int, float]:
    """The seconds of these sizes, linearly interpolated between those that were timed."""
    timed = sorted(seconds)
    return {size: float(np.interp(size, timed, [seconds[each] for each in timed])) for size in sizes}


@dataclasses.dataclass(frozen=True)
class RoundPair:
    """Jobs of two rounds of a method: with one level, and with full depth. Both verify `nodes` nodes.

    The numbers of levels are equal if the tree grows no deeper than one level; for `plain` both are 0. `idle` is a
    round that drafts nothing; None where the method has none.
    """

    nodes: int
    short: Job
    full: Job
    short_levels: int
    full_levels: int
    idle: Job | None = None

    def split(self, short: float, full: float, verification: float) -> tuple[float, float]:
        """Seconds of a level, and of the rest of a round, from those of the two rounds and of the verification.

        If the two rounds have the same levels, the rest counts as part of the level. A level never costs less than
        `TINY`: a DFlash head drafts a whole block in one pass, which is part of the rest, so noise can make the longer
        of the two rounds the faster.
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
    short, full = (round_job(spec, models, state, levels) for levels in (min(depth, 1), depth))
    idle = round_job(spec, models, state, 0) if spec.controller.goes_plain else None
    return RoundPair(max(spec.verify_sizes), short, full, int(short(1)), int(full(1)), idle)
