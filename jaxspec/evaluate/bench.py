"""What `jaxspec bench` does: methods side by side on the same questions."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import costs_of
from jaxspec.decoding.builder import is_chain
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import load_head
from jaxspec.engine.requests import check_settings
from jaxspec.evaluate import (
    bandwidth,
    divergence,
    identity,
    piece_times,
    quality,
    results,
    runner,
    side_by_side,
    simulate,
    suites,
    table,
)
from jaxspec.evaluate.all_methods import ALL, all_methods, unusable_heads
from jaxspec.evaluate.results import Form, Measured
from jaxspec.evaluate.runlog import RunLog, read_finished
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.evaluate.settings import Bench
from jaxspec.host import compilation_cache, environment
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.methods.method import Method, needs_costs, parse_method

NOISE_BATCHES = 4  # the noise of rounding is measured on the texts of this many batches


def run(settings: Bench) -> None:
    """Runs the benchmark under each of its conditions, writes the results and prints the tables."""
    if settings.report is not None:
        if settings.json is None:
            raise ValueError("--report needs --json OUT.json: the page is made of what is kept there")
        check_folder(settings.report)
    each = conditions(settings)
    for one in each:
        check(one)
    for one in each:
        found = compare(one)
        if one.json is not None:
            write(one.json, found, samples_of(one.json, found))
        if len(each) > 1:
            label = f"{simulate.LABEL}, " if one.simulate else ""
            print(f"\n{label}temperature {one.temperature:g}, batch size {one.batch_size}:")
        show(found, Console())
    if settings.report is not None:
        from jaxspec.report import page

        page.write([one.json for one in each if one.json is not None], settings.report)


def conditions(settings: Bench) -> list[Bench]:
    """A run for each temperature and batch size that is asked for, and the file that it writes."""
    pairs = list(
        itertools.product(
            settings.temperatures or (settings.temperature,), settings.batch_sizes or (settings.batch_size,)
        )
    )
    return [
        dataclasses.replace(
            settings,
            temperature=temperature,
            batch_size=batch_size,
            temperatures=(),
            batch_sizes=(),
            json=settings.json and _out(settings, temperature, batch_size, (temperature, batch_size) == pairs[0]),
        )
        for temperature, batch_size in pairs
    ]


def check(settings: Bench) -> None:
    """Raises ValueError for a setting that is wrong whatever the model and the questions are."""
    if not settings.methods:
        raise ValueError("name at least one method")
    for name in ("max_new_tokens", "batch_size", "repeats"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(settings, name)}")
    drawn = (settings.temperature, settings.top_k, settings.top_p, settings.seed)
    check_settings(Request([], settings.max_new_tokens, *drawn, index=0))
    if settings.simulate is not None and settings.temperature > 0:
        raise ValueError("--simulate draws what is accepted, so a temperature means nothing there; leave it out")
    if settings.json is not None:
        check_folder(settings.json)
        if settings.json.suffix == ".jsonl":
            raise ValueError(
                f"--json names a file of JSON, such as {settings.json.with_suffix('.json')}: the log "
                "beside it is what ends in .jsonl"
            )


def write(out: Path, found: dict[str, Any], samples: Mapping[Path, str]) -> None:
    """Writes the results, and before them the samples for HumanEval's scorer, if there are any."""
    for file, text in samples.items():
        write_whole(file, text)
    write_whole(out, to_json(found))


def samples_of(out: Path, found: Mapping[str, Any]) -> dict[Path, str]:
    """Files for HumanEval's scorer beside the results, one a method; none of another suite."""
    if found["settings"].get("suite") != quality.CODE:
        return {}
    _, answers, _ = read_finished(log_of(out))
    by_method = {name: [answer for answer in answers if answer.method == name] for name in found["methods"]}
    safe = lambda name: re.sub(r"[^\w.+=-]", "_", name)
    return {out.with_suffix(f".{safe(name)}.samples.jsonl"): quality.samples(all_) for name, all_ in by_method.items()}


def show(found: dict[str, Any], console: Console) -> None:
    """Prints what came out."""
    if not found.get("simulated"):
        table.show(found["methods"], found["target_seconds"], console)
        table.show_weights(found, console)
        if any(values["divergences"] is None for values in found["methods"].values()):
            console.print("Sampled texts differ by design, so divergences are not counted.")
        side_by_side.show(found["methods"], console)
        return
    chances = found["settings"]["simulate"]
    console.print(
        f"{simulate.LABEL}: random weights, and drafts accepted by chance ({chances}); no text was compared",
        style="bold",
        highlight=False,
    )
    named = {f"{simulate.LABEL} {name}": values for name, values in found["methods"].items()}
    table.show(named, found["target_seconds"], console)


def compare(settings: Bench) -> dict[str, Any]:
    """Runs all methods on all questions, or what OUT.jsonl lacks of that; returns the values of bench's JSON."""
    console = Console(stderr=True)
    label = f"{simulate.LABEL}: " if settings.simulate else ""
    check(settings)
    asked = tuple(dict.fromkeys(settings.methods))
    if ALL in asked:
        for name, why in unusable_heads(locate(settings.target)).items():
            console.print(f"{label}{ALL} leaves out the head {name}: {why}", markup=False, highlight=False)
        named = (method for method in asked if method != ALL)
        asked = tuple(dict.fromkeys((*all_methods(locate(settings.target)), *named)))
        console.print(f"{label}{ALL}: {' '.join(asked)}", markup=False, highlight=False)
    if REFERENCE not in asked:
        console.print(f"{label}{REFERENCE} runs too: it is what the others are measured against")
    methods = {name: parse_method(name) for name in dict.fromkeys((REFERENCE, *asked))}
    questions = tuple(suites.read_questions(settings.prompts, settings.limit, settings.shots))

    engines = build(settings, methods)
    plan = Workload(
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
    log = RunLog(None if settings.json is None else log_of(settings.json), about, is_whole)
    if log.answers:
        console.print(f"{label}questions already answered by an earlier run: {len(log.answers) // len(engines)}")
    if plan.questions[0].suite in quality.SUMMARIES and not quality.has_rouge():
        console.print("no ROUGE: rouge-score is not installed (pip install 'jaxspec[report]')", markup=False)
    if len({answer.batch for answer in log.answers}) < len(plan.batches):
        console.print(
            f"{label}compiling {len(engines)} methods, anew for longer prompts: the first questions take minutes, "
            "unless an earlier run left its programs",
            markup=False,
        )
    with progress(label, len(plan.batches), console) as advance:
        runner.run(plan, engines, log, advance)
    if log.measured is None:
        compilation_cache.make_room(0.25)  # nothing more is decoded, and much is compiled
        log.finish(dataclasses.asdict(measure(plan, engines, log)))
    assert log.measured is not None
    forms = {name: _form(plan, engine) for name, engine in engines.items()}
    return results.summarise(about, log.answers, Measured(**log.measured), forms)


def log_of(out: Path) -> Path:
    """The log beside a file of results."""
    return Path(f"{out}.jsonl")


def to_json(found: dict[str, Any]) -> str:
    """The text of a file of results."""
    return json.dumps(found, indent=2) + "\n"


def build(settings: Bench, methods: Mapping[str, Method]) -> dict[str, Engine]:
    """An engine for each method, or one that simulates it."""
    if settings.simulate is None:
        return build_engines(load(settings.target, settings.dtype, settings.devices.open(), settings.quantize), methods)
    if settings.devices.mesh is not None or settings.quantize is not None:
        raise ValueError("--simulate runs floats on one device: leave --mesh and --quantize out")
    acceptance = simulate.parse(settings.simulate)
    model = simulate.random_checkpoint(locate(settings.target), settings.dtype)
    return {name: simulate.engine(model, method, acceptance) for name, method in methods.items()}


def build_engines(model: Checkpoint, methods: Mapping[str, Method]) -> dict[str, Engine]:
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


def describe(settings: Bench, plan: Workload, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """All that the numbers depend on: device, dtype, versions and settings of the JSON."""
    asked = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for name in ("json", "dtype", "devices", "report", "temperatures", "batch_sizes"):
        del asked[name]
    model = engines[REFERENCE].model
    shape = repr(model.config.model).encode() if settings.simulate else (model.path / "config.json").read_bytes()
    return {
        "device": environment.device(),
        "dtype": str(model.target.norm[...].dtype),
        "versions": environment.versions(),
        "weights": bandwidth.weights(model.target),
        "settings": {
            **asked,
            "mesh": settings.devices.mesh,
            "target": str(settings.target if settings.target.name.strip(".") else settings.target.resolve()),
            "quantize": model.config.quantize,
            "target_sha256": hashlib.sha256(shape).hexdigest(),
            **({} if settings.simulate else weights_of(engines)),
            "methods": list(engines),
            "resolved": [str(engine.method) for engine in engines.values()],
            "prompts": str(settings.prompts),
            "suite": plan.questions[0].suite,
            "questions": len(plan.questions),
            "questions_sha256": hashlib.sha256(
                repr([(q.examples, q.turns) for q in plan.questions]).encode()
            ).hexdigest(),
        },
    }


def weights_of(engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Which weights the engines run: the target's, and those of each head by its name as typed."""
    path = engines[REFERENCE].model.path
    heads = dict.fromkeys(engine.method.head for engine in engines.values() if engine.method.head is not None)
    return {
        "params_sha256": identity.of_params(path),
        "heads_sha256": {head: identity.of_head(find_head(path, head)) for head in heads},
    }


def measure(plan: Workload, engines: Mapping[str, Engine], log: RunLog) -> Measured:
    """What a run measures besides its answers: costs, noise, divergences."""
    engine = engines[REFERENCE]
    target = engine.model.target
    plain = {answer.question: answer for answer in log.answers if answer.method == REFERENCE}
    longest = max(plan.batches, key=lambda batch: max(len(turn.prompt) for n in batch for turn in plain[n].turns))
    costs = piece_times.measure(engines, [plan.request(engine, number, ()) for number in longest])
    sizes = {size for each in engines.values() for size in _sizes(plan, each)}
    first = [[(plain[n].turns[0].prompt, plain[n].turns[0].tokens) for n in batch] for batch in plan.batches]
    with engine.model.context():
        noise = divergence.noise(target, first[:NOISE_BATCHES], sizes)
    divergences: dict[str, list[dict[str, Any]] | None] = dict.fromkeys(engines)
    replayed = any(engine.method.verification is not None for engine in engines.values())
    if plan.temperature == 0 and not replayed:
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
        forms={name: dataclasses.asdict(_form(plan, engine)) for name, engine in engines.items()},
    )


@contextlib.contextmanager
def progress(label: str, total: int, console: Console) -> Iterator[Callable[[], None]]:
    """Yields what to call after each batch: a bar on a terminal, a line elsewhere."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda: console.print(f"{label}batch {next(done)} of {total}", highlight=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{label}questions", total=total)
        yield lambda: bar.advance(task)


def _out(settings: Bench, temperature: float, batch_size: int, is_first: bool) -> Path:
    """OUT for the first condition, OUT.t0.8.b4.json for another; what is the same in all of them is not named."""
    assert settings.json is not None
    if is_first:
        return settings.json
    heat = f".t{temperature:g}" if len(settings.temperatures) > 1 else ""
    size = f".b{batch_size}" if len(settings.batch_sizes) > 1 else ""
    return settings.json.with_suffix(f"{heat}{size}{settings.json.suffix}")


def _form(plan: Workload, engine: Engine) -> Form:
    builder = engine.method.builder
    return Form(
        resolved=str(engine.method),
        sizes=_sizes(plan, engine),
        is_chain=is_chain(builder),
        read_bytes=bandwidth.weights(engine.model.target)["read_bytes"],
    )


def _sizes(plan: Workload, engine: Engine) -> tuple[int, ...]:
    """Tree sizes that this run verifies."""
    return engine.method.speculation(plan.temperature == 0, tree_sizes=engine.tree_sizes).verify_sizes
