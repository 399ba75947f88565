"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from jaxspec.host.terminal import say

_SECONDS = 10  # between lines
_FRAME = 0.5  # between updates of the bar


class Pace:
    """When to show progress next."""

    def __init__(self) -> None:
        self.every = _FRAME if sys.stderr.isatty() else _SECONDS
        self.shown = time.monotonic()

    def due(self) -> bool:
        """Whether it is time; the next will be later."""
        if (now := time.monotonic()) - self.shown < self.every:
            return False
        self.shown = now
        return True


@contextlib.contextmanager
def progress(what: str, done: int, total: int) -> Iterator[Callable[[int, str, float], None]]:
    """Yields a function that is told how many are done, what else to say, and the seconds left.

    Args:
        what: is counted, such as `step`.
    """
    if not sys.stderr.isatty():
        yield lambda count, said, left: say(f"{what} {count} of {total}: {said}, {left:.0f} s left")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=total, completed=done)
        yield lambda count, said, left: bar.update(task, completed=count, description=said)
