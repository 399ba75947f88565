"""Tables of a report: a paper's table with these runs' numbers, or all methods of a run."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxspec.evaluate.runner import REFERENCE
from jaxspec.methods.method import Method
from jaxspec.report.runs import NOTHING, ONE, PARTS, SHARE, TIMES, Number, NumberFormat, Run, a_token, derived, number

Cell = Number | str
PUBLISHED = Path(__file__).parent / "published.json"
Measure = tuple[str, Callable[[Run, str], Cell]]
"""A column: its title, and its cell for a method of a run."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper, or of all methods of a run."""

    title: str
    source: str  # its name in `published`; empty if it is not a paper's
    columns: Sequence[str]  # titles of all columns, those that name a row included
    ours: Sequence[Sequence[Cell]]  # rows of as many cells
    missing: str = ""  # how to get such rows, if there are none
    note: str = ""
    groups: Sequence[tuple[str, int]] = ()  # (title, number of columns) above the columns

    @property
    def published(self) -> list[list[str]]:
        """The paper's own rows."""
        if not self.source:
            return []
        groups = [group for group, wide in self.groups for _ in range(wide)] or [""] * len(self.columns)
        titles = [f"{group} {title}".lstrip() for group, title in zip(groups, self.columns, strict=True)]
        paper = published()[self.source]
        rows = [dict(zip(paper.columns, row, strict=True)) for row in paper.rows]
        return [[row.get(title, NOTHING) for title in titles] for row in rows]


@dataclasses.dataclass(frozen=True)
class Published:
    """A paper's table, with its title and columns as on the page, and the cells as the paper prints them."""

    title: str
    measured: str  # the options of `jaxspec bench` that measure it
    columns: Sequence[str]  # the columns of a data set begin with its name
    rows: Sequence[Sequence[str]]
    note: str = ""  # a sentence below the table


@functools.cache
def published() -> dict[str, Published]:
    """The papers' tables, by name, such as `EAGLE, Table 1`; hardware, targets and texts are the papers' own.

    EAGLE: arXiv:2401.15077. EAGLE-3: arXiv:2503.01840. EESD: arXiv:2406.03853. Draft & Verify: arXiv:2309.08168. EDD:
    "Faster Speculative Decoding via Effective Draft Decoder with Pruned Candidate Tree".
    """
    tables = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    return {source: Published(**table) for source, table in tables.items()}


def measure(title: str, *keys: str | int, form: NumberFormat | None = None) -> Measure:
    """A column of one number of each method's results."""
    return title, lambda run, name: number(run, name, *keys, form=form)


SPEEDUP = measure("speedup", "speedup")
TAU = measure("τ", "tau")
DRAFTED = measure("τ", "tau_drafted")
ACCEPTANCE = measure("α", "acceptance_rate")
ACCURACY = measure("v_d", "draft_accuracy")
PORTION = measure("r_d", "draft_share")
SPEED = measure("tok/s", "tokens_per_second")
HM = measure("HM", "harmonic_mean", form=lambda value: f"{100 * value:.2f}")  # as EESD prints it
ROUGE = measure("ROUGE-2", "quality", "rouge2")
SCORE = measure("score", "quality", "exact_match")


def by_paper(runs: Sequence[Run]) -> list[tuple[str, list[Table]]]:
    papers = {"EAGLE": eagle, "EAGLE-3": eagle3, "EESD": eesd, "EDD and PCT": edd, "Draft & Verify": verify}
    return [(name, list(tables(runs))) for name, tables in papers.items()]


def overview(run: Run) -> Table:
    measures = (
        SPEED,
        measure("±", "tokens_per_second_deviation", form=ONE),
        SPEEDUP,
        measure("±", "speedup_deviation"),
        measure("of the fastest", "against_fastest", "ratio"),
        measure("p", "against_fastest", "p_value", form=SHARE),
        measure("modelled", "modelled_speedup"),
        TAU,
        measure("τ uncut", "tau_uncut"),
        measure("τ drafted", "tau_drafted"),
        ACCEPTANCE,
        measure("HM", "harmonic_mean"),
        measure("nodes", "nodes_per_round"),
        measure("depth", "depth_per_round"),
        measure("unexplained", "unexplained_divergences"),
    )
    rows = [[name, *(read(run, name) for _, read in measures)] for name in run.methods]
    return Table(run.title, "", ["method", *(title for title, _ in measures)], rows)


def eagle(runs: Sequence[Run]) -> Iterator[Table]:
    ours = drafted_by("eagle")
    positions = [measure(f"{i}-α", "acceptance_by_position", i) for i in range(5)]
    long_chains = pick(runs, lambda m: fixed_chain(m) and m.builder.depth >= 5)
    yield by_data("EAGLE, Table 1", runs, ours, (SPEEDUP, TAU))
    yield by_method("EAGLE, Tables 2, 3 and 8", long_chains, (SPEEDUP, TAU, *positions), names="method or data")
    yield by_method("EAGLE, Table 4", pick(quantised(runs), drafted_by("eagle", REFERENCE)), (SPEED,))
    pairs = []
    for run in runs:
        of_run = [name for _, name in pick([run], ours)]
        chain = [n for n in of_run if fixed_chain(run.methods[n]) and run.methods[n].builder.depth == 5]
        tree = [n for n in of_run if is_fixed(run.methods[n]) and run.methods[n].builder.name == "static"]
        if chain and tree:
            before, after = number(run, chain[0], "tau"), number(run, tree[0], "tau")
            more = derived("difference", after, before, "{:+.2f}".format)
            pairs.append([run.where(), f"{chain[0]}, {tree[0]}", before, after, more])
    yield of_paper("EAGLE, Table 5", ["model", "methods", "chain", "tree", "difference"], pairs)
    yield by_method("EAGLE, Table 6", several_heads(runs, ours), (SPEEDUP, TAU), names="method or data")
    yield batches(runs, ours)


def eagle3(runs: Sequence[Run]) -> Iterator[Table]:
    yield by_data("EAGLE-3, Table 1", runs, drafted_by("eagle3"), (SPEEDUP, TAU))


def batches(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> Table:
    """Speedup by batch size, and the ratio of the best throughputs, of runs that differ in nothing else."""
    sizes = sorted({run.settings["batch_size"] for run in runs} | {1, 2, 3, 4})  # the paper's too
    speeds = lambda runs, name: (number(run, name, "tokens_per_second") for run in runs)
    best = lambda runs, name: max(speeds(runs, name), key=lambda speed: speed.value or 0)
    rows = []
    for alike in same_but_batch_size(runs):
        by_size = {run.settings["batch_size"]: run for run in alike}
        if len(by_size) < 2:
            continue
        for _, name in pick(alike[:1], wanted):
            if all(name in run.methods for run in alike):
                cells = [number(by_size[size], name, "speedup") if size in by_size else NOTHING for size in sizes]
                throughput = derived("ratio", best(alike, name), best(alike, REFERENCE), TIMES)
                rows.append([alike[0].where(batch=False), name, *cells, throughput])
    return of_paper("EAGLE, Table 7", ["model", "method", *(f"batch {size}" for size in sizes), "throughput"], rows)


def eesd(runs: Sequence[Run]) -> Iterator[Table]:
    rival = drafted_by("early-exit", "medusa", "draft-model", "layer-skip")
    early = pick(runs, lambda m: sampled(m) or m.drafter.name == "early-exit")
    yield by_data("EESD, Tables 1 to 3", runs, rival, (HM, SPEEDUP))
    yield by_method("EESD, Tables 10 to 13", pick(runs, rival), (ACCURACY, PORTION, HM, SPEED, SPEEDUP))
    yield stopped(runs)
    yield branched(runs)
    yield by_method("EESD, Table 8", early, [(part, functools.partial(a_question, part=part)) for part in PARTS])


def stopped(runs: Sequence[Run]) -> Table:
    """The best fixed length of chains beside the lengths that Thompson sampling chooses."""
    rows = []
    for run, name in pick(runs, lambda m: sampled(m) and m.builder.is_chain):
        head = drafts_by(run.methods[name])
        others = [other for other, m in run.methods.items() if fixed_chain(m) and drafts_by(m) == head]
        if others:
            best = max(others, key=lambda other: run.value(other, "speedup"))
            rows.append([f"{run.where()}; {best}", name, number(run, best, "speedup"), number(run, name, "speedup")])
    return of_paper("EESD, Table 5", ["model; best fixed method", "method", "fixed K", "Thompson sampling"], rows)


def branched(runs: Sequence[Run]) -> Table:
    """Chains and trees under the same Thompson sampling."""
    alike = lambda method: (drafts_by(method), method.controller.name)
    rows = [
        [f"{run.where()}; {chain}", tree, number(run, chain, "speedup"), number(run, tree, "speedup")]
        for run, chain in pick(runs, lambda m: sampled(m) and m.builder.is_chain)
        for tree, method in run.methods.items()
        if not method.builder.is_chain and alike(method) == alike(run.methods[chain])
    ]
    return of_paper("EESD, Table 7", ["model; chain", "method", "chain", "tree"], rows)


def a_question(run: Run, name: str, part: str) -> Number:
    """Seconds of a part of decoding, mean over the questions."""
    whole, questions = number(run, name, "breakdown", part), len({answer.question for answer in run.answers})
    mean = None if whole.value is None else whole.value / questions
    return Number(mean, SHARE, ["a question", *whole.of])


def edd(runs: Sequence[Run]) -> Iterator[Table]:
    measures = (SPEEDUP, ACCEPTANCE, DRAFTED)
    yield by_data("EDD, Table 1", runs, lambda method: fixed_chain(method) and method.builder.depth == 5, measures)
    yield by_data("EDD, Table 2", runs, lambda method: is_fixed(method) and method.builder.name != "chain", measures)
    pruned = pick(runs, lambda method: is_fixed(method) and method.builder.name == "pruned")
    yield by_method("EDD, Table 3", pruned, measures)


def verify(runs: Sequence[Run]) -> Iterator[Table]:
    own, stops = drafted_by("layer-skip"), controlled_by("threshold", "adaptive")
    lossless = lambda method: own(method) or stops(method) or method.drafter.name == "plain"
    on = lambda *data: [run for run in runs if run.data in data]
    yield by_data("Draft & Verify, Table 1", on("CNN/DM", "XSum"), lossless, (ROUGE, SPEEDUP))
    answers = pick(on("GSM8K", "HumanEval"), lossless)
    yield by_method("Draft & Verify, Tables 2 and 14", answers, (SCORE, SPEEDUP))
    lengths = []
    for run in runs:
        for names in (names for names in chains(run) if len(names) > 1):
            head = run.methods[names[0]].head
            lengths += [(run, name) for name in names] + pick([run], lambda m, head=head: stops(m) and m.head == head)
    yield by_method("Draft & Verify, Tables 3, 4, 6 and 11", lengths, (ACCEPTANCE, SPEEDUP))
    each = lambda title, *keys: (title, lambda run, name: a_token(run, name, *keys))
    parts = {"drafting": "drafting", "verification": "verification", "γ update": "control"}
    times = (*(each(title, "breakdown", part) for title, part in parts.items()), each("in all", "decode_seconds"))
    yield by_method("Draft & Verify, Table 5", pick(runs, lambda m: stops(m) or own(m)), times)
    yield by_method("Draft & Verify, Tables 8 to 10", several_heads(runs, own), (ACCEPTANCE, SPEEDUP))
    measures = (ACCEPTANCE, each("ms a token", "decode_seconds"), SPEEDUP)
    yield by_method("Draft & Verify, Tables 12 and 13", pick(quantised(runs), own), measures)


def drafted_by(*names: str) -> Callable[[Method], bool]:
    return lambda method: method.drafter.name in names


def controlled_by(*names: str) -> Callable[[Method], bool]:
    return lambda method: method.controller.name in names


is_fixed = controlled_by("fixed")
sampled = controlled_by("beta-ts", "cali-ts")  # Thompson sampling
quantised = lambda runs: [run for run in runs if run.settings.get("quantize")]


def several_heads(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> list[tuple[Run, str]]:
    """The wanted methods in runs that compare two or more heads."""
    found = pick(runs, wanted)
    heads = {run.number: {each.methods[name].head for each, name in found if each is run} for run in runs}
    return [(run, name) for run, name in found if len(heads[run.number]) > 1]


def of_paper(
    source: str, columns: Sequence[str], ours: Sequence[Sequence[Cell]], groups: Sequence[tuple[str, int]] = ()
) -> Table:
    """A paper's table with these rows."""
    paper = published()[source]
    return Table(paper.title, source, columns, ours, paper.measured, paper.note, groups)


def by_method(
    source: str, found: Sequence[tuple[Run, str]], measures: Sequence[Measure], names: str = "method"
) -> Table:
    """A table with a row for each method found; `names` is the title of their column."""
    ours = [[run.where(), name, *(read(run, name) for _, read in measures)] for run, name in found]
    return of_paper(source, ["model", names, *(title for title, _ in measures)], ours)


def by_data(source: str, runs: Sequence[Run], wanted: Callable[[Method], bool], measures: Sequence[Measure]) -> Table:
    """A table with columns for each data set: first those of these runs, then the paper's others."""
    first = f" {measures[0][0]}"
    theirs = [column.removesuffix(first) for column in published()[source].columns if column.endswith(first)]
    data = list(dict.fromkeys([run.data for run in runs] + theirs))
    nothing = [NOTHING] * len(measures)
    rows: dict[tuple[str, str], dict[str, Sequence[Cell]]] = {}
    for run, name in pick(runs, wanted):
        row = rows.setdefault((run.where(data=False), name), {})
        row[run.data] = [read(run, name) for _, read in measures]
    columns = ["model", "method", *(title for _ in data for title, _ in measures)]
    ours = [[*key, *(cell for one in data for cell in row.get(one, nothing))] for key, row in rows.items()]
    return of_paper(source, columns, ours, [("", 2), *((one, len(measures)) for one in data)])


def pick(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> list[tuple[Run, str]]:
    """(run, name) of all methods that are wanted."""
    return [(run, name) for run in runs for name, method in run.methods.items() if wanted(method)]


def same_but_batch_size(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in groups that differ in the batch size only; of each size the first run."""
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        # `resolved` has costs that were measured for each batch size.
        rest = {name: value for name, value in run.settings.items() if name not in ("batch_size", "resolved")}
        alike = found.setdefault(repr((run.found["device"], run.found["dtype"], rest)), {})
        alike.setdefault(run.settings["batch_size"], run)
    return [list(alike.values()) for alike in found.values()]


def chains(run: Run) -> list[list[str]]:
    """Chains of a fixed length by drafter, the shortest first."""
    found: dict[tuple, list[str]] = {}
    for name, method in run.methods.items():
        if fixed_chain(method):
            found.setdefault(drafts_by(method), []).append(name)
    return [sorted(names, key=lambda name: run.methods[name].builder.depth) for names in found.values()]


def drafts_by(method: Method) -> tuple[Any, str | None, int]:
    """Drafter, head and history: methods with the same differ in builder, controller and rule only."""
    return method.drafter, method.head, method.history


def fixed_chain(method: Method) -> bool:
    return is_fixed(method) and method.builder.is_chain and method.builder.depth > 0
