"""Median times of jobs that alternate, and of the pieces of a round."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from jaxspec.costs.timed_loops import Job, ToLevel, half_way, judge, learn, resume, round_job, target_job, to_depth
from jaxspec.decoding.batch import padded
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.host.compilation import Compilations
from jaxspec.host.processes import largest

Name = TypeVar("Name")
REPEATS = 7
LEAST_SECONDS = 0.1  # duration of one timed call
MOST_ITERATIONS = 2**20
SPREAD = 2.5  # least ratio of two timed numbers of nodes above 2
TINY = 1e-9  # seconds; the smallest time of an iteration or a level, if noise hides it


def seconds_per_iteration(jobs: Sequence[Job]) -> list[float]:
    """Median seconds per iteration of each job. The jobs alternate, and the overhead of a call is subtracted.

    Several processes run the jobs together; the time of a call is that of the slowest process.
    """
    for job in jobs:
        jax.block_until_ready(job(0))  # compiles
    empty = [min(_seconds(job, 0) for _ in range(3)) for job in jobs]
    timed = [(job, base, _length(job, base)) for job, base in zip(jobs, empty, strict=True)]
    rounds = [[max(_seconds(job, length) - base, TINY) / length for job, base, length in timed] for _ in range(REPEATS)]
    return list(map(statistics.median, zip(*rounds, strict=True)))


def _length(job: Job, base: float) -> int:
    """Number of iterations that take about LEAST_SECONDS, without the overhead `base` of a call.

    The faster of two calls counts, because the first call of a program can be very slow.
    """
    length = 1
    while length < MOST_ITERATIONS:
        seconds = min(_seconds(job, length) for _ in range(2)) - base
        if seconds >= LEAST_SECONDS / 2:
            break
        length = math.ceil(length * min(max(LEAST_SECONDS / max(seconds, TINY), 2), 32))
    return length


def _seconds(job: Job, iterations: int) -> float:
    began = time.perf_counter()
    jax.block_until_ready(job(iterations))
    return largest(time.perf_counter() - began)


def spread(sizes: Iterable[int]) -> list[int]:
    """The numbers of nodes to time among these; each is a program to compile, so the others' times are interpolated.

    Both 1 and 2 are timed: one row is a product of another kind, and on CPUs with AVX2 two rows take as long as ten.
    """
    ascending, timed = sorted({*sizes}), list[int]()
    for size in ascending:
        if size <= 2 or not timed or size >= SPREAD * timed[-1] or size == ascending[-1]:
            timed.append(size)
    return timed


def interpolated(seconds: Mapping[int, float], sizes: Iterable[int]) -> dict[int, float]:
    """The seconds of these sizes, linearly interpolated between those that were timed."""
    timed = sorted(seconds)
    return {size: float(np.interp(size, timed, [seconds[each] for each in timed])) for size in sizes}


@dataclasses.dataclass(frozen=True)
class PieceCosts:
    """Seconds of each piece of a method's rounds."""

    plain: float  # s_t(1), one forward of the target over one token
    verify: Mapping[int, float]  # of n tree nodes, by n: s_t(n), or less if it reuses layers of drafting
    level: float = 0.0  # s_d, one drafted level as it occurs in a round, without the controller
    rest: float = 0.0  # a round without its levels, verification and controller
    plain_rest: float = 0.0  # likewise, of plain decoding
    control_level: float = 0.0  # the controller's decision after a level, and its inputs
    control_round: float = 0.0  # the controller's update after a round
    idle: float | None = None  # a round that drafts nothing, without the controller; None: its verification and rest


def split(least: int, most: int, short: float, full: float, verification: float) -> tuple[float, float]:
    """Seconds of a level, and of the rest of a round, from those of rounds of `least` and `most` levels.

    If both rounds have one level, or none as in `plain`, the rest counts as part of the level. A level never costs less
    than `TINY`: a DFlash head drafts a whole block in one pass, which is part of the rest, so noise can make the longer
    of the two rounds the faster.
    """
    if most > least:
        level = max(full - short, TINY) / (most - least)
    else:
        level = max(full - verification, TINY) / most if most else 0.0
    return level, max(full - most * level - verification, 0.0)


def piece_times(
    specs: Mapping[Name, Speculation],
    models: Mapping[Name, Models],
    requests: Sequence[Request],
    rows: int,
    context: Callable[[], AbstractContextManager],
    sizes: Collection[int] = (),
) -> dict[Name, PieceCosts]:
    """Times the pieces of each method's rounds in the middle of decoding one batch, `requests`; `plain_rest` is left 0.

    Times are medians over several calls, which alternate between the pieces. Equal pieces are timed once.

    Args:
        models: by method; all have the same target.
        rows: length of the cache.
        context: `Checkpoint.context` of the target.
        sizes: numbers of nodes of which verification is timed, besides those of the methods.
    """
    target, batch = next(iter(models.values())).target, len(padded(requests))
    wanted = {1, *sizes, *(size for spec in specs.values() for size in spec.verify_sizes)}

    def compiled(job: Job) -> None:  # in the threads of `Compilations`
        with context():
            jax.block_until_ready(job(0))  # messages of two programs between processes must not mix

    with context():
        # A round is split by the time of its own verification; between sizes, times are interpolated.
        timed = sorted({*spread(wanted), *(max(spec.verify_sizes) for spec in specs.values())})
        jobs: dict[tuple, Job] = {("target", size): target_job(target, batch, size, rows) for size in timed}
        for name, spec in specs.items():
            jobs |= _jobs_of(name, spec, models[name], requests, rows)
        again = ("full rounds", "plain rounds")  # the program of the short ones
        programs = {key: partial(compiled, job) for key, job in jobs.items() if key[0] not in again}
        Compilations(programs, lambda key: str(key[0])).wait()
        levels = {key: int(job(1)) for key, job in jobs.items() if key[0] in ("short rounds", "full rounds")}
        seconds = dict(zip(jobs, seconds_per_iteration(list(jobs.values())), strict=True))
    forward, costs = interpolated({size: seconds["target", size] for size in timed}, wanted), dict[Name, PieceCosts]()
    for name, spec in specs.items():
        verify, most, key = forward, max(spec.verify_sizes), _round_key(spec, models[name])
        if (resumed := seconds.get(_resume_key(spec, models[name]))) is not None:
            share = resumed / forward[most]  # the same share of the layers, whatever the size
            verify = {size: share * forward[size] for size in (*spec.verify_sizes, *sizes)}
        short, full = ("short rounds", key), ("full rounds", key)
        level, rest = split(levels[short], levels[full], seconds[short], seconds[full], verify[most])
        control = {f"control_{piece}": seconds.get((f"control {piece}", name), 0.0) for piece in ("level", "round")}
        costs[name] = PieceCosts(forward[1], verify, level, rest, **control, idle=seconds.get(("plain rounds", key)))
    return costs


def _jobs_of(name: Any, spec: Speculation, models: Models, requests: Sequence[Request], rows: int) -> dict[tuple, Job]:
    """The jobs of a method's rounds. Methods whose jobs have the same key share them."""
    depth, key = spec.builder.depth, _round_key(spec, models)
    state = jax.block_until_ready(half_way(spec, models, requests, rows))
    jobs: dict[tuple, Job] = {
        ("short rounds", key): round_job(spec, models, state, min(depth, 1)),
        ("full rounds", key): round_job(spec, models, state, depth),
    }
    if spec.controller.goes_plain:
        jobs["plain rounds", key] = round_job(spec, models, state, 0)
    if depth and spec.drafter.reuses_drafting:
        jobs[_resume_key(spec, models)] = partial(resume, spec, max(spec.verify_sizes), models, state)
    if depth and spec.controller.stops and not isinstance(spec.controller, ToLevel):
        jobs["control level", name] = partial(judge, spec, models, state)
        jobs["control round", name] = partial(learn, spec, state)
    return jobs


def _round_key(spec: Speculation, models: Models) -> tuple:
    return to_depth(spec), id(models.draft)


def _resume_key(spec: Speculation, models: Models) -> tuple:
    return "resumed", id(models.draft), spec.builder.is_chain, max(spec.verify_sizes)
