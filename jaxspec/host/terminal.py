"""Remarks and progress on stderr, so that stdout has only results; and the tables of results."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

_names: dict[str, str] = {}  # of temporary folders


def say(text: str) -> None:
    """Prints a remark on stderr."""
    for place, name in reversed(_names.items()):
        text = text.replace(place, name)
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def called(place: Path, name: str) -> Iterator[None]:
    """In remarks, a temporary folder has the name of what it becomes or is a copy of."""
    _names[str(place)] = name
    try:
        yield
    finally:
        del _names[str(place)]


def print_table(console: Any, names: Sequence[str], titles: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table without lines on a `rich.console.Console`: columns `names` of text, then `titles` of numbers."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def print_lines(console: Any, *lines: str, style: str | None = None) -> None:
    """Prints lines as they are, without rich's markup."""
    for line in lines:
        console.print(line, markup=False, highlight=False, style=style)


_SECONDS = 10  # between lines
_FRAME = 0.5  # between updates of the bar


class Progress:
    """Progress of some work; `draw` updates the bar on a terminal, None if there is none. `form` as in `progress`."""

    def __init__(self, title: str, total: int, done: int, draw: Callable | None, form: Callable[[int], str]):
        self.title, self.total, self.done, self.draw, self.form = title, total, done, draw, form
        self.began = self.shown = time.monotonic()
        self.before, self.every = done, _SECONDS if draw is None else _FRAME

    def due(self) -> bool:
        """Whether it is time to show the progress again."""
        if (now := time.monotonic()) - self.shown < self.every:
            return False
        self.shown = now
        return True

    def advance(self, count: int = 1) -> None:
        """Adds to the number of finished pieces, and shows it if `due`."""
        self.done += count
        if self.due():
            self.show(self.done)

    def report(self, done: int, remark: str = "") -> None:
        """Shows the progress, with the seconds that are left at the speed so far, if it is `due` or complete."""
        if self.due() or done == self.total:
            each = (time.monotonic() - self.began) / max(done - self.before, 1)
            self.show(done, remark, each * (self.total - done))

    def show(self, done: int, remark: str = "", left: float | None = None) -> None:
        """Shows the number of finished pieces, a remark, and the seconds that are left."""
        self.done = done
        if self.draw is not None:
            self.draw(done, remark)
            return
        more = [remark] * bool(remark) + ([] if left is None else [f"{left:.0f} s left"])
        numbers = f"{self.title} {self.form(done)} of {self.form(self.total)}"
        say(f"{numbers}: {', '.join(more)}" if more else numbers)


@contextlib.contextmanager
def progress(title: str, total: int, done: int = 0, form: Callable[[int], str] = str) -> Iterator[Progress]:
    """Yields the progress of `total` pieces of work, of which `done` were finished before.

    `title` names what is counted, such as `step`; `form` writes a number, as `rich.filesize.decimal` does for bytes.
    """
    if not sys.stderr.isatty():
        yield Progress(title, total, done, None, form)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    numbers = TextColumn("{task.fields[numbers]}")
    of = lambda done: f"{form(done)} of {form(total)}"
    with Bar(TextColumn(title), BarColumn(), numbers, TextColumn("{task.description}"), TimeRemainingColumn(),
             console=Console(stderr=True)) as bar:  # fmt: skip
        task = bar.add_task("", total=total, completed=done, numbers=of(done))
        draw = lambda done, remark: bar.update(task, completed=done, description=remark, numbers=of(done))
        yield Progress(title, total, done, draw, form)
