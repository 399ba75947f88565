"""What `jaxspec bench` does: methods side by side on the same questions."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxspec.costs import CostTable
from jaxspec.engine import Engine
from jaxspec.evaluate import cost, divergence, environment, results, runner, side_by_side, suites, table
from jaxspec.evaluate.calibrate import costs_of
from jaxspec.evaluate.command import Bench
from jaxspec.evaluate.results import Form, Measured
from jaxspec.evaluate.runlog import RunLog
from jaxspec.evaluate.runner import REFERENCE, Plan
from jaxspec.linelog import write_whole
from jaxspec.loading import Checkpoint, load
from jaxspec.methods import Method, needs_costs, parse_method
from jaxspec.protocols import Drafter, is_chain
from jaxspec.weights import load_head

NOISE_BATCHES = 4  # the noise of rounding is measured on the texts of this many batches


def run(settings: Bench) -> None:
    """Runs the benchmark, writes its results and prints the table."""
    found = compare(settings)
    if settings.json is not None:
        write_whole(settings.json, to_json(found))
    show(found, Console())


def show(found: dict[str, Any], console: Console) -> None:
    """Prints what came out."""
    table.show(found["methods"], found["target_seconds"], console)
    side_by_side.show(found["methods"], console)


def compare(settings: Bench) -> dict[str, Any]:
    """Runs all methods on all questions, or what OUT.jsonl lacks of that; returns the values of bench's JSON."""
    console = Console(stderr=True)
    asked = dict.fromkeys(settings.methods)
    if not asked:
        raise ValueError("name at least one method")
    if REFERENCE not in asked:
        console.print(f"{REFERENCE} runs too: it is what the others are measured against")
    methods = {name: parse_method(name) for name in (REFERENCE, *asked)}
    questions = tuple(suites.read_questions(settings.prompts, settings.limit, settings.shots))
    if settings.json is not None and not settings.json.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {settings.json.absolute().parent} to write {settings.json.name} into")

    model = load(settings.target, settings.dtype, settings.devices.open())
    engines = build(model, methods)
    plan = Plan(
        questions=questions,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=settings.seed,
        batch_size=settings.batch_size,
        repeats=settings.repeats,
        chat=settings.chat,
        keep_state=settings.keep_state,
    )
    runner.check(plan, engines[REFERENCE])

    about = describe(settings, plan, engines)
    is_whole = lambda answers: len(answers) == len(plan.batches[answers[0].batch]) * len(engines)
    log = RunLog(None if settings.json is None else Path(f"{settings.json}.jsonl"), about, is_whole)
    if log.answers:
        console.print(f"questions already answered by an earlier run: {len(log.answers) // len(engines)}")
    with progress(len(plan.batches), console) as advance:
        runner.run(plan, engines, log, advance)
    if log.measured is None:
        log.finish(dataclasses.asdict(measure(plan, engines, log)))
    assert log.measured is not None
    measured = Measured(**log.measured)
    found = results.tally(log.answers, measured, {name: _form(plan, engine) for name, engine in engines.items()})
    return {**about, "noise": measured.noise, **times(measured), "methods": found}


def to_json(found: dict[str, Any]) -> str:
    """The text of a file of results."""
    return json.dumps(found, indent=2) + "\n"


def build(model: Checkpoint, methods: Mapping[str, Method]) -> dict[str, Engine]:
    """An engine for each method; those with the same drafter and head share its weights, and what these cost."""
    weights: dict[tuple[Drafter, str | None], Any] = {}
    tables: dict[tuple[Drafter, str | None], CostTable] = {}
    engines = {}
    for name, method in methods.items():
        key = (method.drafter, method.head)
        if key not in weights:
            weights[key] = load_head(model, method)
        if needs_costs(method.builder):
            if key not in tables:
                tables[key] = costs_of(model, method, weights[key])
            method = method.with_costs(tables[key])
        engines[name] = Engine(model, method, draft=weights[key])
    return engines


def times(measured: Measured) -> dict[str, dict[str, float]]:
    """The measured seconds that `modelled_speedup` is made of: s_t by tokens verified, the others by method."""
    return {name: seconds for name, seconds in dataclasses.asdict(measured).items() if name.endswith("_seconds")}


def describe(settings: Bench, plan: Plan, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """All that the numbers depend on: device, dtype, versions and settings of the JSON."""
    asked = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    del asked["json"], asked["dtype"], asked["devices"]
    config = engines[REFERENCE].model.path / "config.json"
    return {
        "device": environment.device(),
        "dtype": str(engines[REFERENCE].model.target.norm[...].dtype),
        "versions": environment.versions(),
        "settings": {
            **asked,
            "mesh": settings.devices.mesh,
            "target": str(settings.target),
            "target_sha256": hashlib.sha256(config.read_bytes()).hexdigest(),
            "methods": list(engines),
            "resolved": [str(engine.method) for engine in engines.values()],
            "prompts": str(settings.prompts),
            "questions": len(plan.questions),
            "questions_sha256": hashlib.sha256(
                repr([(q.examples, q.turns) for q in plan.questions]).encode()
            ).hexdigest(),
        },
    }


def measure(plan: Plan, engines: Mapping[str, Engine], log: RunLog) -> Measured:
    """What a run measures besides its answers: costs, noise, divergences."""
    engine = engines[REFERENCE]
    target = engine.model.target
    plain = {answer.question: answer for answer in log.answers if answer.method == REFERENCE}
    longest = max(plan.batches, key=lambda batch: max(len(turn.prompt) for n in batch for turn in plain[n].turns))
    costs = cost.measure(engines, [plan.request(engine, number, ()) for number in longest])
    sizes = {size for each in engines.values() for size in _sizes(plan, each)}
    first = [[(plain[n].turns[0].prompt, plain[n].turns[0].tokens) for n in batch] for batch in plan.batches]
    with engine.model.context():
        noise = divergence.noise(target, first[:NOISE_BATCHES], sizes)
    divergences: dict[str, list[dict[str, Any]] | None] = dict.fromkeys(engines)
    if plan.temperature == 0:
        for name in engines:
            found = (
                divergence.diverges(target, answer.question, i, (turn.prompt, turn.tokens), ours.tokens)
                for answer in log.answers
                if answer.method == name
                for i, (turn, ours) in enumerate(zip(plain[answer.question].turns, answer.turns, strict=True))
            )
            divergences[name] = [{**dataclasses.asdict(d), "explained": d.explained(noise)} for d in found if d]
    by_size = lambda seconds: {str(size): value for size, value in seconds.items()}
    return Measured(
        noise=noise,
        target_seconds=by_size(costs.target),
        resumed_seconds={name: by_size(seconds) for name, seconds in costs.resumed.items()},
        level_seconds=dict(costs.level),
        control_level_seconds=dict(costs.control_level),
        control_round_seconds=dict(costs.control_round),
        divergences=divergences,
    )


@contextlib.contextmanager
def progress(total: int, console: Console) -> Iterator[Callable[[], None]]:
    """Yields what to call after each batch: a bar on a terminal, a line elsewhere."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda: console.print(f"batch {next(done)} of {total}", highlight=False)
        return
    columns = (TextColumn("questions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("questions", total=total)
        yield lambda: bar.advance(task)


def _form(plan: Plan, engine: Engine) -> Form:
    builder = engine.method.builder
    return Form(resolved=str(engine.method), sizes=_sizes(plan, engine), is_chain=is_chain(builder))


def _sizes(plan: Plan, engine: Engine) -> tuple[int, ...]:
    """Tree sizes that this run verifies."""
    return engine.method.speculation(plan.temperature == 0, tree_sizes=engine.tree_sizes).verify_sizes
