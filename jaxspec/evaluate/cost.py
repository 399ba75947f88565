"""What the pieces of a round cost, each compiled alone and measured on this device at a run's own shapes."""

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence

from jaxspec.engine import Engine
from jaxspec.evaluate.pieces import Job, draft_job, half_way, judge_job, learn_job, resume_job, resumes, target_job
from jaxspec.protocols import is_chain
from jaxspec.request import Request, shapes, start

REPEATS = 7
LEAST_SECONDS = 0.1  # that one timed call takes
MOST_ITERATIONS = 2**20
_TINY = 1e-9


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds a piece of a round takes.

    Attributes:
        target: s_t(n) by n: one forward of the target over n tree nodes, and their logits.
        resumed: by method whose verification begins where drafting left off, by n: that instead of s_t(n).
        level: s_d by method: one drafted level, with its share of what the drafter learns from the verified tokens, and
            without the controller.
        control_level: by method: the controller's decision after a level, with what it reads of that level.
        control_round: by method: what the controller learns from a round.
    """

    target: Mapping[int, float]
    resumed: Mapping[str, Mapping[int, float]]
    level: Mapping[str, float]
    control_level: Mapping[str, float]
    control_round: Mapping[str, float]


def measure(engines: Mapping[str, Engine], requests: Sequence[Request]) -> Costs:
    """Times every method's pieces at the shapes that decoding `requests`, one batch, has.

    Medians over several calls, which alternate over the pieces.
    """
    greedy = all(request.temperature == 0 for request in requests)
    specs = {name: e.method.speculation(greedy, tree_sizes=e.tree_sizes) for name, e in engines.items()}
    sizes = sorted({1, *(size for spec in specs.values() for size in spec.verify_sizes)})
    rows = max(shapes(spec, requests)[1] for spec in specs.values())
    engine = next(iter(engines.values()))
    with engine.model.context():
        batch = start(specs[next(iter(engines))], engine.models, requests, (), rows).length.shape[0]
        jobs: dict[tuple, Job] = {
            ("target", size): target_job(engine.models.target, batch, size, rows) for size in sizes
        }
        for name, spec in specs.items():
            models = engines[name].models
            if spec.builder.depth:
                state = half_way(spec, models, requests, rows)
                jobs["level", name] = draft_job(spec, models, state)
                if resumes(spec, models, state):
                    for size in spec.verify_sizes:
                        if (key := resumed_key(engines[name], size)) not in jobs:
                            jobs[key] = resume_job(spec, models, state, size)
                if spec.controller.stops:
                    jobs["control level", name] = judge_job(spec, models, state)
                    jobs["control round", name] = learn_job(spec, state)
        seconds = dict(zip(jobs, seconds_per_unit(list(jobs.values())), strict=True))
    by_method = lambda piece: {name: seconds.get((piece, name), 0.0) for name in specs}
    return Costs(
        target={size: seconds["target", size] for size in sizes},
        resumed={
            name: found
            for name, spec in specs.items()
            if spec.builder.depth  # what drafts nothing has nothing to go on from, whoever's weights it holds
            if (found := {n: seconds[key] for n in spec.verify_sizes if (key := resumed_key(engines[name], n)) in jobs})
        },
        level=by_method("level"),
        control_level=by_method("control level"),
        control_round=by_method("control round"),
    )


def resumed_key(engine: Engine, size: int) -> tuple:
    """What the time of a verification that goes on from drafting depends on: methods that share it are timed once."""
    return ("resumed", id(engine.models.draft), is_chain(engine.method.builder), size)


def seconds_per_unit(jobs: Sequence[Job]) -> list[float]:
    """Median seconds a unit of each job, the jobs taking turns; what a call takes besides its units does not count."""
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
    """Iterations that take LEAST_SECONDS, or nearly, beside the `none` seconds of a call without any.

    The quicker of two calls counts: a program's first can be slow beyond measure, and few iterations say little.
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
    return time.perf_counter() - began, units
