"""Tables of a report: numbers with their source, and a paper's table with these runs' numbers."""

import dataclasses
import functools
import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.report.runs import Run

NOTHING = "–"
Real = float | int
NumberFormat = Callable[[Real], str]
PLAIN, TIMES, CHANGE = "{:.2f}".format, "{:.2f}×".format, "{:+.2f}".format
WHOLE, ONE, SHARE = "{:.0f}".format, "{:.1f}".format, "{:.3f}".format
MILLI, HUNDREDTHS = (lambda value: f"{1e3 * value:.3g}"), (lambda value: f"{100 * value:.2f}")


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
        return NOTHING if self.value is None else self.form(self.value).replace("-", "−")

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
    return html.escape(str(text))


Cell = Number | str
PUBLISHED = Path(__file__).parent / "published.json"
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
        if not self.source:
            return []
        paper = published()[self.source]
        rows = [dict(zip(paper.columns, row, strict=True)) for row in paper.rows]
        return [[row.get(title, NOTHING) for title in titles] for row in rows]


@dataclasses.dataclass(frozen=True)
class Published:
    """A paper's table.

    Attributes:
        title: the table's title on the page.
        measured: the options of `jaxspec bench` that measure it.
        columns: titles as on the page; the columns of a data set begin with its name.
        rows: of as many cells, as the paper prints them.
        note: a sentence below the table; empty without one.
    """

    title: str
    measured: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


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


def a_token(run: Run, name: str, *keys: str) -> Number:
    """Seconds of a part of decoding, in milliseconds per token."""
    return derived("ratio", number(run, name, *keys), number(run, name, "tokens"), MILLI)
