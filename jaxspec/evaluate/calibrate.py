"""`jaxspec calibrate`: measures the table of costs, or the speeds of all methods, stores it and prints it."""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxspec.builders import Chain
from jaxspec.checkpoint.heads import CALIBRATION, find_head
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import SPEEDS, costs_key, how_run, measure, speeds_key, store
from jaxspec.decoding.request import SamplingParams
from jaxspec.decoding.strategy import CostTable
from jaxspec.drafters import DRAFTERS
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import drafter_of, load_head
from jaxspec.evaluate import bench, reliability, results, runner
from jaxspec.evaluate.all_methods import all_methods
from jaxspec.evaluate.runlog import RunLog, answers_by_method
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.host.arguments import check_unused, integer
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.terminal import print_table
from jaxspec.methods.method import Method, parse_method
from jaxspec.options.by_command import Answers, Calibrate

QUESTIONS, REPEATS = 8, 3  # of `--all`


def run(settings: Calibrate) -> None:
    if (settings.head is None) != settings.all:
        raise ValueError("give either --head NAME, whose costs are measured, or --all, for the speeds of all methods")
    integer("batch_size", settings.batch_size, 1)
    integer("max_new_tokens", settings.max_new_tokens, 2)  # the first token is prefill's, and no round makes it
    Workload.of(_asked(settings, settings.target))  # before minutes of measuring
    model = load(settings.target, settings.dtype, settings.devices.open(several=True), settings.quantize)
    if settings.head is None:
        key = speeds_key(model.path, model.heads, batch_size=settings.batch_size, **how_run(model))
        speeds = speeds_of_all(settings, model)
        store(key, {SPEEDS: speeds})
        ranked = sorted(speeds, key=speeds.__getitem__, reverse=True)
        rows = [(name, f"{speeds[name]:.0f}", f"{speeds[name] / speeds[REFERENCE]:.2f}") for name in ranked]
        print_table(Console(), ["method"], ("tokens/s", "speedup"), rows)
        Console().print(f"Default from now on: {ranked[0]}", soft_wrap=True)
        return
    method = method_of(model.path, settings.head)
    weights = load_head(model, method)
    key = costs_key(model, method.fitted(weights), settings.batch_size)
    estimates = method.drafter.estimates(weights)
    if estimates:
        check_folder(_calibration_file(model, method))
    else:
        without = f"--head {settings.head}, which has no confidence output"
        check_unused(settings, without, "prompts", "limit", "max_new_tokens")
    table = measure(model, method, weights, settings.batch_size)
    store(key, dataclasses.asdict(table))
    show(table, Console())
    if estimates:
        calibrate_confidence(settings, model, method, weights)


def calibrate_confidence(settings: Calibrate, model: Checkpoint, method: Method, weights: Any) -> None:
    """Fits the temperatures of a head's confidence output to decoded chains, and keeps them in the head's folder."""
    weights.options = dataclasses.replace(weights.options, temperatures=())
    drafter = method.drafter.fitted(weights)
    engine = Engine(model, Method(drafter, Chain(drafter.levels_at_once or 0), head=method.head), draft=weights)
    plan = Workload.of(_asked(settings, model.path))
    runner.check(plan, engine)
    requests = [plan.request(engine, number, []) for number in range(len(plan.questions))]
    texts = engine.decode(requests, settings.batch_size, record=True)
    rounds = [each for _, text in texts for each in text.rounds or ()]
    found, errors = reliability.temperatures(rounds, drafter.levels_at_once or 0)
    file = _calibration_file(model, method)
    write_whole(file, json.dumps({"temperatures": found}) + "\n")
    rows = [
        (str(level), f"{value:.2f}", f"{before:.3f}", f"{after:.3f}")
        for level, (value, (before, after)) in enumerate(zip(found, errors, strict=True), 1)
    ]
    print_table(Console(), ["draft"], ("temperature", "error before", "after"), rows)
    Console().print(f"The confidence head's temperatures are in {file}", soft_wrap=True)


def _calibration_file(model: Checkpoint, method: Method) -> Path:
    return find_head(model.path, method.head or method.drafter.name) / CALIBRATION


def _asked(settings: Calibrate, path: Path) -> Answers:
    return Answers(
        target=path,
        prompts=settings.prompts,
        limit=max(QUESTIONS, settings.batch_size) if settings.limit is None else settings.limit,
        sampling=SamplingParams(max_new_tokens=settings.max_new_tokens),
        batch_size=settings.batch_size,
    )


def speeds_of_all(settings: Calibrate, model: Checkpoint) -> dict[str, float]:
    """Tokens a second by method, named with its settings but not measured costs: greedy, median of some passes."""
    size = settings.batch_size
    engines = bench.build_engines(model, {name: parse_method(name) for name in all_methods(model.path)}, size)
    plan = Workload.of(_asked(settings, model.path), REPEATS)
    runner.check(plan, engines[REFERENCE])
    log = RunLog(None, {}, ())
    runner.run(plan, engines, log, f"{len(engines)} methods: batch")
    answers = answers_by_method(log.answers)
    return {str(engines[name].named): statistics.median(results.speeds(found)) for name, found in answers.items()}


def method_of(path: Path, head: str) -> Method:
    """The method to measure for a head's name or path, or DRAFTER[@HEAD] with optional settings.

    Raises ValueError if it is none of these, or `plain`, which does not draft.
    """
    name = head.partition("@")[0].partition(",")[0].partition("+")[0]
    if name == "plain":
        raise ValueError("plain drafts nothing, so there is nothing to calibrate; name a drafter's head")
    if name in DRAFTERS:
        return parse_method(head)
    return dataclasses.replace(parse_method("ngram"), drafter=drafter_of(path, head), head=head)


def show(table: CostTable, console: Console) -> None:
    """Prints the table in milliseconds and in units of s_t(1), the target's forward over one token per sequence."""
    rows = []
    for each in (table, *table.longer):
        pieces = {"one token": [(1, each.plain)], "a level drafted": each.level, "verification": each.verify}
        pieces |= {"a round without drafts": [(1, each.idle)]} if each.idle is not None else {}
        for name, costs in pieces.items():
            title = name if each is table else f"{name}, {each.context} tokens"
            for nodes, seconds in costs if each is table else costs[-1:]:
                rows.append((title, str(nodes), f"{1e3 * seconds:.3f}", f"{seconds / table.plain:.3f}"))
    print_table(console, ["piece"], ("nodes", "ms", "s_t(1)"), rows)
