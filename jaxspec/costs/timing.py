"""Median times of jobs that alternate."""

import math
import statistics
import time
from collections.abc import Sequence

from jaxspec.costs.round_pieces import Job
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
