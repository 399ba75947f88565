"""Tables of a report: a paper's table with these runs' numbers, or all methods of a run."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxspec.report.numbers import NOTHING, Number, NumberFormat, number
from jaxspec.report.runs import Run

Cell = Number | str
PUBLISHED = Path(__file__).parent / "published.json"
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
