"""A table of a paper with these runs' numbers, and what its rows and columns are made of."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.methods.method import Method
from jaxspec.report.cells import HUNDREDTHS, Cell, Number, number
from jaxspec.report.runs import Run

Rows = list[list[str]]
Measure = tuple[str, Callable[[Run, str], Cell]]
"""A column: its title, and what a method of a run has in it."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        title, source: what it shows, and which table of which paper it is.
        groups: (title, number of columns) above the columns; () where there are none.
        columns: titles of all columns, the first two included.
        ours, published: rows of cells, as many as `columns`.
        missing: how to get rows of one's own, where there are none.
    """

    title: str
    source: str
    groups: Sequence[tuple[str, int]]
    columns: Sequence[str]
    ours: Sequence[Sequence[Cell]]
    published: Rows
    missing: str
    note: str = ""


SPEEDUP: Measure = ("speedup", lambda run, name: number(run, name, "speedup"))
TAU: Measure = ("τ", lambda run, name: number(run, name, "tau"))
DRAFTED: Measure = ("τ", lambda run, name: number(run, name, "tau_drafted"))
ACCEPTANCE: Measure = ("α", lambda run, name: number(run, name, "acceptance_rate"))
ACCURACY: Measure = ("v_d", lambda run, name: number(run, name, "draft_accuracy"))
PORTION: Measure = ("r_d", lambda run, name: number(run, name, "draft_share"))
SPEED: Measure = ("tok/s", lambda run, name: number(run, name, "tokens_per_second"))


def percent(run: Run, name: str) -> Number:
    """The harmonic mean, in hundredths as EESD prints it; the exact number stays what it is."""
    return number(run, name, "harmonic_mean", form=HUNDREDTHS)


HM: Measure = ("HM", percent)
ROUGE: Measure = ("ROUGE-2", lambda run, name: number(run, name, "quality", "rouge2"))
SCORE: Measure = ("score", lambda run, name: number(run, name, "quality", "exact_match"))


def by_data(
    title: str,
    source: str,
    runs: Sequence[Run],
    wanted: Callable[[Method], bool],
    measures: Sequence[Measure],
    data: Sequence[str],
    theirs: Rows,
    missing: str,
    note: str = "",
) -> Table:
    """A table with columns for each data set, ours before those of the paper that these runs do not have."""
    all_data = list(dict.fromkeys([run.data for run in runs] + list(data)))
    wide = len(measures)
    rows: dict[tuple[str, str], list[Cell]] = {}
    for run, name in pick(runs, wanted):
        row = rows.setdefault((run.where(data=False), name), ["–"] * (wide * len(all_data)))
        at = wide * all_data.index(run.data)
        row[at : at + wide] = [read(run, name) for _, read in measures]
    place = lambda row, one: row[2 + wide * data.index(one) :][:wide] if one in data else ["–"] * wide
    return Table(
        title,
        source,
        [("", 2), *((one, wide) for one in all_data)],
        ["model", "method", *(title for _ in all_data for title, _ in measures)],
        [[*key, *cells] for key, cells in rows.items()],
        [[*row[:2], *(cell for one in all_data for cell in place(row, one))] for row in theirs],
        missing,
        note,
    )


def pick(runs: Sequence[Run], wanted: Callable[[Method], bool]) -> list[tuple[Run, str]]:
    """(run, name) of all methods that are wanted."""
    return [(run, name) for run in runs for name, method in run.methods.items() if wanted(method)]


def same_but(runs: Sequence[Run], key: str) -> list[list[Run]]:
    """Runs in groups that differ in one setting only, the first run of each of its values."""
    found: dict[str, dict[Any, Run]] = {}
    for run in runs:
        rest = {name: value for name, value in run.settings.items() if name != key}
        alike = found.setdefault(repr((run.found["device"], run.found["dtype"], rest)), {})
        alike.setdefault(run.settings[key], run)
    return [list(alike.values()) for alike in found.values()]


def chain_lengths(runs: Sequence[Run]) -> list[list[tuple[Run, str]]]:
    """Chains of one drafter in groups, by length, where there are several."""
    found: dict[tuple, list[tuple[Run, str]]] = {}
    for run, name in pick(runs, fixed_chain):
        found.setdefault((run.number, run.methods[name].drafter, run.methods[name].head), []).append((run, name))
    by_length = lambda each: _of(each).builder.depth
    return [sorted(alike, key=by_length) for alike in found.values() if len(alike) > 1]


def _of(each: tuple[Run, str]) -> Method:
    run, name = each
    return run.methods[name]


def drafter(method: Method) -> str:
    return method.drafter.name


def builder(method: Method) -> str:
    return method.builder.name


def control(method: Method) -> str:
    return method.controller.name


def chained(method: Method) -> bool:
    return method.builder.is_chain


def fixed_chain(method: Method) -> bool:
    """Whether it drafts chains of one length."""
    return chained(method) and method.builder.depth > 0 and control(method) == "fixed"
