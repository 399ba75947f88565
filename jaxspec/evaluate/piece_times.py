"""Times of the pieces of a round on this device, at a run's own shapes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxspec.costs.timed_loops import Job, half_way, judge, learn, resume, target_job, to_depth
from jaxspec.costs.timing import RoundPair, interpolated, round_pair, seconds_per_iteration, spread
from jaxspec.decoding.batch import padded
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.cost_model import PieceCosts
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.host.compilation import Compilations


def measure(engines: Mapping[str, Engine], requests: Sequence[Request]) -> dict[str, PieceCosts]:
    """Times the pieces of each method's rounds at the shapes of one batch, `requests`. `engines` include the reference.

    Times are medians over several calls, which alternate between the pieces. Methods with history are timed without it.
    """
    greedy = all(request.sampling.temperature == 0 for request in requests)
    heads = {name: dataclasses.replace(engine.method, history=0) for name, engine in engines.items()}
    specs = {name: method.speculation(greedy, tree_sizes=engines[name].tree_sizes) for name, method in heads.items()}
    wanted = {1, *(size for spec in specs.values() for size in spec.verify_sizes)}
    rows = max(shapes(spec, requests)[1] for spec in specs.values())
    engine = next(iter(engines.values()))

    def in_context(work: Callable[..., Any], *given: Any) -> Any:  # in the threads of `Compilations`
        with engine.model.context():
            return work(*given)

    with engine.model.context():
        batch = len(padded(requests))
        states = {name: half_way(spec, engines[name].models, requests, rows) for name, spec in specs.items()}
        rounds = {
            round_key(engines[name], spec): partial(in_context, round_pair, spec, engines[name].models, states[name])
            for name, spec in specs.items()
        }
        pairs: dict[tuple, RoundPair] = Compilations(rounds, lambda key: "rounds").wait()
        # A round is split by the time of its own verification; between sizes, times are interpolated.
        sizes = sorted({*spread(wanted), *(pair.nodes for pair in pairs.values())})
        jobs: dict[tuple, Job] = {
            ("target", size): target_job(engine.models.target, batch, size, rows) for size in sizes
        }
        for name, spec in specs.items():
            models, state = engines[name].models, states[name]
            pair = pairs[key := round_key(engines[name], spec)]
            jobs["short", key], jobs["full", key] = pair.short, pair.full
            if pair.idle is not None:
                jobs["idle", key] = pair.idle
            if not spec.builder.depth:
                continue
            if spec.drafter.reuses_drafting and (key := resumed_key(engines[name], spec)) not in jobs:
                jobs[key] = partial(resume, spec, max(spec.verify_sizes), models, state)
            if spec.controller.stops:
                jobs["control level", name] = partial(judge, spec, models, state)
                jobs["control round", name] = partial(learn, spec, state)
        Compilations({key: partial(in_context, job, 0) for key, job in jobs.items()}, lambda key: str(key[0])).wait()
        seconds = dict(zip(jobs, seconds_per_iteration(list(jobs.values())), strict=True))
    target, found = interpolated({size: seconds["target", size] for size in sizes}, wanted), {}
    for name, spec in specs.items():
        verify = target
        # Plain decoding drafts nothing, so its verification cannot resume from a draft.
        if spec.builder.depth and (key := resumed_key(engines[name], spec)) in jobs:
            saved = seconds[key] / target[max(spec.verify_sizes)]  # the same share of the layers, whatever the size
            verify = {size: saved * target[size] for size in spec.verify_sizes}
        pair = pairs[key := round_key(engines[name], spec)]
        level, rest = pair.split(seconds["short", key], seconds["full", key], verify[pair.nodes])
        control = {f"control_{piece}": seconds.get((f"control {piece}", name), 0.0) for piece in ("level", "round")}
        idle = seconds.get(("idle", key))
        found[name] = PieceCosts(target[1], verify, level, rest, **control, idle=idle)
    return {name: dataclasses.replace(costs, plain_rest=found[REFERENCE].rest) for name, costs in found.items()}


def round_key(engine: Engine, spec: Speculation) -> tuple:
    """The key of a method's whole rounds: methods with the same key are timed once."""
    return (to_depth(spec), id(engine.models.draft))


def resumed_key(engine: Engine, spec: Speculation) -> tuple:
    """The key of a verification that resumes from drafting's layers."""
    return ("resumed", id(engine.models.draft), spec.builder.is_chain, max(spec.verify_sizes))
