"""Which weights a run measured, in a few letters: those of a path may have been trained again since."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from jaxspec.controllers.acceptance_predictor import FOLDER

HEAD = ("config.json", "params", FOLDER)
"""What is read of a head; beside it may lie logs, or heads of its own."""


def of_head(folder: Path) -> str:
    """SHA-256 of the names and bytes of a head's files."""
    found = hashlib.sha256()
    for file in _files(folder, HEAD):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        found.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


def of_params(folder: Path) -> str:
    """SHA-256 of the names and sizes of a target's files of parameters: their bytes may be hundreds of gigabytes.

    Every save draws new names for the files of arrays, so that it tells one from another.
    """
    lines = (f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n" for file in _files(folder, ("params",)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        yield from sorted(file for file in [folder / name, *(folder / name).rglob("*")] if file.is_file())
