"""`jaxspec bench`: compares methods on the same questions."""

import dataclasses
import glob
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from rich.console import Console

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import costs_of
from jaxspec.costs.timing import spread
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import heads_of, load_head
from jaxspec.evaluate import divergence, quality, results, runner, simulate, table
from jaxspec.evaluate.all_methods import ALL, all_methods
from jaxspec.evaluate.cost_model import piece_costs
from jaxspec.evaluate.divergence import Divergence
from jaxspec.evaluate.results import Form, Measured
from jaxspec.evaluate.run_description import describe, weight_bytes
from jaxspec.evaluate.runlog import Answer, RunLog, answers_by_method, check_out, log_of, read_finished
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.host import compilation
from jaxspec.host.arguments import check_unused
from jaxspec.host.atomic import check_apart, check_ours, write_whole
from jaxspec.host.buckets import with_paths
from jaxspec.host.processes import is_first
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.options.by_command import Bench
from jaxspec.planning.counting import Parts
from jaxspec.planning.program import chain_on_one_chip

UNSAFE = r"[^\w.+=-]"  # characters that are replaced in file names
SAMPLES = ".samples.jsonl"  # end of the name of a file that a scorer of code reads
NOISE_BATCHES, NOISE_TOKENS = 4, 32  # the first batches, and tokens of each text, that rounding noise is measured on


def run(settings: Bench, shape: CheckpointConfig | None = None) -> list[Path]:
    """Runs the benchmark under each of its conditions, prints the tables, and returns the result files.

    The first process writes these. `shape` is the target's configuration, for a simulation only.
    """
    runs = conditions(with_paths(settings))
    for one in runs:
        check(one)
    for one in runs:
        found = run_methods(one, shape)
        if one.json is not None and is_first():
            for file, text in samples_of(one.json, found).items():
                write_whole(file, text)
            write_whole(one.json, to_json(found))
        if len(runs) > 1:
            print(f"\n{_label(one, ', ')}temperature {one.sampling.temperature:g}, batch size {one.batch_size}:")
        show(found, Console())
    return [one.json for one in runs if one.json is not None]


def conditions(settings: Bench) -> list[Bench]:
    """The settings of one run for each temperature and batch size, each with its own result file.

    Raises ValueError for a single temperature or batch size beside several.
    """
    if settings.temperatures:
        check_unused(settings.sampling, "--temperatures", "temperature")
    if settings.batch_sizes:
        check_unused(settings, "--batch-sizes", "batch_size")
    found: list[Bench] = []
    for temperature in settings.temperatures or (settings.sampling.temperature,):
        for batch_size in settings.batch_sizes or (settings.batch_size,):
            out = settings.json
            if out is not None and found:  # OUT.t0.8.b4.json; a value that all conditions share is left out
                of_temperature = f".t{temperature:g}" if len(settings.temperatures) > 1 else ""
                of_size = f".b{batch_size}" if len(settings.batch_sizes) > 1 else ""
                out = out.with_suffix(f"{of_temperature}{of_size}{out.suffix}")
            sampling = dataclasses.replace(settings.sampling, temperature=temperature)
            one = {"sampling": sampling, "batch_size": batch_size, "json": out}
            found.append(dataclasses.replace(settings, **one, temperatures=(), batch_sizes=()))
    return found


def check(settings: Bench) -> None:
    """Raises ValueError for settings that are invalid for any model and questions."""
    if not settings.methods:
        raise ValueError("name at least one method")
    runner.check_counts(settings, "batch_size", "repeats")
    if settings.sampling.max_new_tokens == 1:
        raise ValueError("--max-new-tokens must be at least 2: the first token is prefill's, and no round is timed")
    if settings.simulate is not None and settings.sampling.temperature > 0:
        raise ValueError("--simulate decides acceptance at random, so temperature has no meaning; leave it out")
    if settings.simulate is not None and (settings.devices.mesh is not None or settings.quantize is not None):
        raise ValueError("--simulate runs on one device without quantisation: leave out --mesh and --quantize")
    if settings.json is not None:
        check_out(settings.json)
        check_apart(settings.json, settings.prompts)
        for out in (settings.json, *settings.json.parent.glob(f"{glob.escape(settings.json.stem)}.*{SAMPLES}")):
            check_ours(out, log_of(settings.json))


def samples_of(out: Path, found: Mapping[str, Any]) -> dict[Path, str]:
    """The input files of the scorer of code, one per method; none for a suite of other questions."""
    if (suite := found["settings"].get("suite")) not in quality.CODE:
        return {}
    _, answers, _ = read_finished(log_of(out))
    return {
        out.with_suffix(f".{re.sub(UNSAFE, '_', name)}{SAMPLES}"): quality.samples(
            suite, ((answer.question_id, answer.turns[0].text) for answer in ours)
        )
        for name, ours in answers_by_method(answers).items()
    }


def show(found: dict[str, Any], console: Console) -> None:
    methods, chances = found["methods"], found["settings"].get("simulate")
    if chances:
        text = f"{simulate.LABEL}: random weights, and drafts accepted by chance ({chances}); no text was compared"
        console.print(text, style="bold", highlight=False)
        methods = {f"{simulate.LABEL} {name}": values for name, values in methods.items()}
    table.show(methods, found["target_seconds"], console)
    if not chances:
        table.show_weights(found, console)
        if any(values["divergences"] is None for values in methods.values()):
            console.print("Sampled texts differ by design, so divergences are not counted.")


def run_methods(settings: Bench, shape: CheckpointConfig | None = None) -> dict[str, Any]:
    """Runs all methods on all questions that OUT.jsonl does not have yet. Returns the values of bench's JSON."""
    check(settings)
    mesh = settings.devices.open(several=settings.simulate is None)
    label = _label(settings, ": ")
    methods = {name: parse_method(name) for name in _named_methods(settings, label)}
    plan = Workload.of(settings, settings.repeats)
    engines = build(settings, methods, mesh, shape)
    runner.check(plan, engines[REFERENCE])
    runner.warn(plan, engines.values())

    about = describe(settings, plan, engines)
    sizes = [len(batch) * len(engines) for batch in plan.batches]
    log = RunLog(None if settings.json is None else log_of(settings.json), about, sizes)
    if log.answers:
        say(f"{label}questions already answered by an earlier run: {len(log.answers) // len(engines)}")
    if len({answer.batch for answer in log.answers}) < len(plan.batches):
        say(
            f"{label}compiling {len(engines)} methods, and again for longer prompts: the first questions take minutes, "
            "unless the programs are cached from an earlier run"
        )
    runner.run(plan, engines, log, f"{label}batch")
    if log.measured is None:
        compilation.make_room(0.25)  # decoding is done, and measuring compiles much
        log.finish(dataclasses.asdict(measure(settings, plan, engines, log)))
    assert log.measured is not None
    return results.summarise(about, log.answers, Measured.from_json(log.measured))


def to_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2) + "\n"


def build(
    settings: Bench, methods: Mapping[str, Method], mesh: Mesh | None, shape: CheckpointConfig | None
) -> dict[str, Engine]:
    """An engine for each method; for a simulation, with random weights of this shape."""
    if settings.simulate is None:
        model = load(settings.target, settings.dtype, mesh, settings.quantize)
        return build_engines(model, methods, settings.batch_size)
    assert shape is not None, "a simulation needs the target's shape"
    acceptance = simulate.parse(settings.simulate)
    model = simulate.random_checkpoint(locate(settings.target), shape, settings.dtype)
    heads, engines = dict[Drafter, Any](), dict[str, Engine]()
    for name, method in methods.items():
        engines[name] = simulate.engine(model, method, acceptance, heads.get(method.drafter), settings.batch_size)
        heads[method.drafter] = engines[name].models.draft
    return engines


def build_engines(model: Checkpoint, methods: Mapping[str, Method], batch_size: int = 1) -> dict[str, Engine]:
    """An engine for each method. Methods with the same drafter and head share its weights and its cost table."""
    weights: dict[tuple[Drafter, str | None], Any] = {}
    tables: dict[tuple[Drafter, str | None], CostTable] = {}
    engines = {}
    for name, method in methods.items():
        key = (method.drafter, method.head)
        if key not in weights:
            weights[key] = load_head(model, method)
        if method.needs_costs and key not in tables:
            tables[key] = costs_of(model, method, weights[key], batch_size)
        engines[name] = Engine(model, method, draft=weights[key], costs=tables.get(key))
    return engines


def measure(settings: Bench, plan: Workload, engines: Mapping[str, Engine], log: RunLog) -> Measured:
    engine, forms, answers = engines[REFERENCE], forms_of(plan, engines), answers_by_method(log.answers)
    plain = {answer.question: answer for answer in answers[REFERENCE]}
    pieces = None
    if settings.prices:
        # Attention on a CPU reads all rows of the cache, so times depend on the prompt's length: take a median batch.
        longest = lambda batch: max(len(turn.prompt) for number in batch for turn in plain[number].turns)
        by_length = sorted(plan.batches, key=longest)
        middle = by_length[len(by_length) // 2]
        pieces = piece_costs(engines, [plan.request(engine, number, ()) for number in middle])
    noise, divergences = None, dict[str, list[dict[str, Any]] | None].fromkeys(engines)
    if settings.simulate is None and settings.sampling.temperature == 0:
        apart = {name: _divergences(engine, plain, answers[name]) for name in engines}
        if any(apart.values()):  # measured only then, because each size of verification is a program to compile
            sizes = spread(size for form in forms.values() for size in form.sizes)
            first = [[plain[number].turns[0] for number in batch] for batch in plan.batches[:NOISE_BATCHES]]
            texts = [[(turn.prompt, turn.tokens[:NOISE_TOKENS]) for turn in turns] for turns in first]
            with engine.model.context():
                noise = divergence.noise(engine.model.target, texts, sizes)
        judged = lambda one: {**dataclasses.asdict(one), "explained": noise is not None and one.explained(noise)}
        divergences = {name: [judged(one) for one in found] for name, found in apart.items()}
    return Measured(noise, pieces, divergences, forms)


def _divergences(engine: Engine, plain: Mapping[int, Answer], answers: Sequence[Answer]) -> list[Divergence]:
    """Where the texts of a method's answers differ from plain decoding's, by question."""
    found = (
        divergence.diverges(engine.model.target, answer.question, i, (turn.prompt, turn.tokens), ours.tokens)
        for answer in answers
        for i, (turn, ours) in enumerate(zip(plain[answer.question].turns, answer.turns, strict=True))
    )
    return [one for one in found if one is not None]


def _named_methods(settings: Bench, label: str) -> tuple[str, ...]:
    """The methods to run, as typed, the reference first; `all` is expanded."""
    names = settings.methods
    if ALL in names:
        target = locate(settings.target)
        _, unusable = heads_of(target)
        for head, why in unusable.items():
            say(f"{label}{ALL} leaves out the head {head}: {why}")
        names = tuple(dict.fromkeys((*all_methods(target), *(name for name in names if name != ALL))))
        say(f"{label}{ALL}: {' '.join(names)}")
    if REFERENCE not in names:
        say(f"{label}{REFERENCE} runs too, as the reference of the speedups")
    return tuple(dict.fromkeys((REFERENCE, *names)))


def _label(settings: Bench, after: str) -> str:
    """The prefix of every message about a simulation; empty for a real run."""
    return f"{simulate.LABEL}{after}" if settings.simulate else ""


def forms_of(plan: Workload, engines: Mapping[str, Engine]) -> dict[str, Form]:
    """The forms of the methods. Bytes that drafting reads are counted once per head: they do not depend on the tree."""
    reads: dict[tuple[Drafter, str | None], Parts] = {}
    forms, greedy = {}, plan.settings.sampling.temperature == 0
    for name, engine in engines.items():
        method = engine.method
        key = (method.drafter, method.head)
        if method.builder.depth and key not in reads:
            reads[key] = chain_on_one_chip(method, engine.models)
        forms[name] = Form(
            resolved=str(method),
            sizes=method.speculation(greedy, tree_sizes=engine.tree_sizes).verify_sizes,
            is_chain=method.builder.is_chain,
            read_bytes=weight_bytes(engine.model.target)["read_bytes"],
            draft_bytes=reads[key].draft.bytes if key in reads else 0,
            level_bytes=reads[key].level.bytes if key in reads else 0,
        )
    return forms
