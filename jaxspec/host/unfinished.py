"""Outputs under temporary names while they are written, to be removed if the process ends."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_written: set[Path] = set()


@contextlib.contextmanager
def listed(temporary: Path) -> Iterator[None]:
    """Lists a file or folder until the block is left."""
    _written.add(temporary)
    try:
        yield
    finally:
        _written.discard(temporary)


def remove_all() -> None:
    """Removes what is being written."""
    for path in list(_written):
        remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder into which interrupted threads may still be writing, until deletion succeeds."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    gone = 0
    for _ in range(50):
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.05)
        gone = 0 if path.exists() else gone + 1
        if gone == 2:  # a thread may make the folder again
            return
