"""Progress on stderr: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich import filesize

from jaxspec.host.terminal import say

_SECONDS = 5


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many more bytes of `total` are done."""
    if not sys.stderr.isatty():
        yield _lines(title, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def _lines(title: str, total: int) -> Callable[[int], None]:
    """A line every few seconds."""
    done, said = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, said
        done += count
        if (now := time.monotonic()) - said >= _SECONDS:
            said = now
            say(f"{title}: {filesize.decimal(done)} of {filesize.decimal(total)}")

    return advance
