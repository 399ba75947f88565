"""Outputs under temporary names while they are written; whoever ends the process removes them."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_written: set[Path] = set()


@contextlib.contextmanager
def listed(temporary: Path) -> Iterator[None]:
    """Keeps a file or folder in mind until the block is left."""
    _written.add(temporary)
    try:
        yield
    finally:
        _written.discard(temporary)


def remove_all() -> None:
    """Removes what is being written."""
    for path in list(_written):
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder into which interrupted threads may still be writing, until deletion succeeds."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
        if not folder.exists():
            return
