"""Tables of a report: numbers with their source, and a paper's table with these runs' numbers."""

import dataclasses
import functools
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.methods.method import Method
from jaxspec.report.runs import Run

NOTHING = "–"
Real = float | int


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How a number is written: multiplied by `unit`, with these digits and this suffix."""

    digits: str
    after: str = ""
    unit: Real = 1

    def __call__(self, value: Real) -> str:
        return format(value * self.unit, self.digits).replace("-", "−") + self.after


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a run.

    Attributes:
        of: its source: run, method and keys of bench's JSON; or [operation, source, source].
        interval: the ends of its 95 % interval; () without one.
    """

    value: Real | None
    form: NumberFormat
    of: Sequence[Any]
    interval: "Sequence[Number]" = ()

    def __str__(self) -> str:
        return NOTHING if self.value is None else self.form(self.value)

    def __html__(self) -> str:
        """HTML: the rounded value with its source, and the interval."""
        if self.value is None:
            return NOTHING
        found = f"<data {self.source('value')}>{escape(self)}</data>"
        ends = ", ".join(end.__html__() for end in self.interval)
        return f'{found}<span class="interval"> [{ends}]</span>' if ends else found

    def source(self, value: str = "data-value") -> str:
        """HTML attributes with the number's source and, named `value`, the exact number."""
        return f'data-of="{escape(json.dumps(list(self.of)))}" {value}="{self.value!r}"'


PLAIN, TIMES, CHANGE = NumberFormat(".2f"), NumberFormat(".2f", "×"), NumberFormat("+.2f")
WHOLE, ONE, SHARE = NumberFormat(".0f"), NumberFormat(".1f"), NumberFormat(".3f")
MILLI, HUNDREDTHS = NumberFormat(".3g", unit=1e3), NumberFormat(".2f", unit=100)
FORMS = {
    **dict.fromkeys(("speedup", "modelled_speedup"), TIMES),
    **dict.fromkeys(("tokens_per_second", "nodes_per_round", "depth_per_round"), ONE),
    "unexplained_divergences": WHOLE,
    "quality": SHARE,
}
"""The format of a number by its key; others have PLAIN."""


def number(run: Run, method: str, *keys: str | int, form: NumberFormat | None = None) -> Number:
    """A number of a run, with its interval if it has one."""
    kind = next((str(key) for key in reversed(keys) if str(key) in FORMS), "")
    *folder, last = keys
    ends = (*folder, f"{last}_interval")
    interval = [
        Number(end, PLAIN, [run.number, method, *ends, at]) for at, end in enumerate(run.value(method, *ends) or ())
    ]
    return Number(run.value(method, *keys), form or FORMS.get(kind, PLAIN), [run.number, method, *keys], interval)


def derived(operation: str, first: Number, second: Number, form: NumberFormat) -> Number:
    """`ratio` or `difference` of two numbers."""
    if first.value is None or not second.value:
        return Number(None, form, [])
    value = first.value / second.value if operation == "ratio" else first.value - second.value
    return Number(value, form, [operation, list(first.of), list(second.of)])


def escape(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text))


Cell = Number | str
PUBLISHED = Path(__file__).parent / "published.md"
_TEXTS = re.compile(r"^- (\w+): (.*(?:\n  .*)*)", re.MULTILINE)
PARTS = ("drafting", "verification", "control", "other")
Measure = tuple[str, Callable[[Run, str], Cell]]
"""A column: its title, and its cell for a method of a run."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper, or of all methods of a run.

    Attributes:
        source: the table's name in `published`; empty if it is not a paper's.
        columns: titles of all columns, those that name a row included.
        ours: rows of as many cells.
        missing: how to get such rows, if there are none.
        groups: (title, number of columns) above the columns; () without any.
    """

    title: str
    source: str
    columns: Sequence[str]
    ours: Sequence[Sequence[Cell]]
    missing: str = ""
    note: str = ""
    groups: Sequence[tuple[str, int]] = ()

    @property
    def published(self) -> list[list[str]]:
        """The paper's own rows."""
        groups = [group for group, wide in self.groups for _ in range(wide)] or [""] * len(self.columns)
        titles = [f"{group} {title}".lstrip() for group, title in zip(groups, self.columns, strict=True)]
        rows = published()[self.source].rows if self.source else ()
        return [[row.get(title, NOTHING) for title in titles] for row in rows]


@dataclasses.dataclass(frozen=True)
class Published:
    """A paper's table: `title`, `measured` (the options that measure it) and `note` in `texts`, and cells by column."""

    texts: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]


@functools.cache
def published() -> dict[str, Published]:
    """The papers' tables, by name, such as `EAGLE, Table 1`."""
    tables = {}
    for section in PUBLISHED.read_text(encoding="utf-8").split("\n## ")[1:]:
        source, *lines = section.splitlines()
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
        titles, _, *rows = cells
        texts = {name: " ".join(text.split()) for name, text in _TEXTS.findall(section)}
        tables[source] = Published(texts, [dict(zip(titles, row, strict=True)) for row in rows])
    return tables


def of_paper(
    source: str, columns: Sequence[str], ours: Sequence[Sequence[Cell]], groups: Sequence[tuple[str, int]] = ()
) -> Table:
    """A paper's table with these rows."""
    texts = published()[source].texts
    return Table(texts["title"], source, columns, ours, texts["measured"], texts.get("note", ""), groups)


def measure(title: str, *keys: str | int, form: NumberFormat | None = None) -> Measure:
    """A column of one number of each method's results."""
    return title, lambda run, name: number(run, name, *keys, form=form)


def a_token(run: Run, name: str, *keys: str) -> Number:
    """Seconds of a part of decoding, in milliseconds per token."""
    return derived("ratio", number(run, name, *keys), number(run, name, "tokens"), MILLI)


def by_method(
    source: str, found: Sequence[tuple[Run, str]], measures: Sequence[Measure], names: str = "method"
) -> Table:
    """A table with a row for each method found; `names` is the title of their column."""
    ours = [[run.where(), name, *(read(run, name) for _, read in measures)] for run, name in found]
    return of_paper(source, ["model", names, *(title for title, _ in measures)], ours)


def by_data(source: str, runs: Sequence[Run], wanted: Callable[[Method], bool], measures: Sequence[Measure]) -> Table:
    """A table with columns for each data set: first those of these runs, then the paper's others."""
    first = f" {measures[0][0]}"
    theirs = [column.removesuffix(first) for column in published()[source].rows[0] if column.endswith(first)]
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


def same_but(runs: Sequence[Run], key: str) -> list[list[Run]]:
    """Runs in groups that differ in one setting only; of each value the first run."""
    found: dict[str, dict[Any, Run]] = {}
    for run in runs:
        rest = {name: value for name, value in run.settings.items() if name != key}
        alike = found.setdefault(repr((run.found["device"], run.found["dtype"], rest)), {})
        alike.setdefault(run.settings[key], run)
    return [list(alike.values()) for alike in found.values()]


def chains(run: Run) -> list[list[str]]:
    """Chains of a fixed length by drafter, the shortest first."""
    found: dict[tuple, list[str]] = {}
    for name, method in run.methods.items():
        if fixed_chain(method):
            found.setdefault(drafts_by(method), []).append(name)
    return [sorted(names, key=lambda name: run.methods[name].builder.depth) for names in found.values()]


def drafts_by(method: Method) -> tuple[Any, str | None, int]:
    """What drafts: methods that share it differ in builder, controller and rule only."""
    return method.drafter, method.head, method.history


def fixed_chain(method: Method) -> bool:
    """Whether it drafts chains of one length."""
    return method.builder.is_chain and method.builder.depth > 0 and method.controller.name == "fixed"
