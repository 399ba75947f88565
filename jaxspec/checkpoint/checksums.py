"""SHA-256 of parameters: of files, stored beside them to find damage; and of arrays, to recognise them.

`params.sha256` has the format of `sha256sum`, which can check it too: `cd CKPT && sha256sum -c params.sha256`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.host import processes
from jaxspec.host.atomic import write_whole
from jaxspec.host.buckets import files_under

NAME = "params.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (params/[^\\]+)")
_NOTHING = lambda size: None


def write(folder: Path) -> None:
    """Writes the checksums of FOLDER/params, once all processes have written their parts; all of them call this."""
    processes.wait()
    if processes.is_first():
        write_digests(folder, digests(folder, _files(folder)))


def write_digests(folder: Path, found: Mapping[str, str]) -> None:
    """Writes the checksums of FOLDER/params, from the digest of each file by its name in FOLDER."""
    write_whole(folder / NAME, "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items())))


def verify(folder: Path, done: Callable[[int], None] = _NOTHING) -> int:
    """Number of files checked, those of heads too; `done` gets the bytes of each. Raises CheckpointError."""
    return sum(_verify_one(place, done) for place in _places(folder))


def size(folder: Path) -> int:
    """Bytes that `verify` reads."""
    return sum((place / name).stat().st_size for place in _places(folder) for name in _files(place))


def _places(folder: Path) -> list[Path]:
    """The folder and those below it that have parameters or checksums of some, without hidden ones."""
    names = [file.relative_to(folder).parts for file in files_under(folder)]
    found = {parts[: parts.index("params")] for parts in names if "params" in parts[:-1]}
    found |= {parts[:-1] for parts in names if parts[-1] == NAME}
    return sorted(folder.joinpath(*at) for at in found if not any(part.startswith(".") for part in at))


def _verify_one(folder: Path, done: Callable[[int], None]) -> int:
    expected, there = _read(folder / NAME), _files(folder)
    if wrong := sorted(expected.keys() ^ {*there}):
        problem = "is missing" if wrong[0] in expected else f"is not among those of {NAME}"
        raise CheckpointError(f"{folder / wrong[0]} {problem}; convert or copy {folder} again")
    for name, digest in digests(folder, there, done).items():
        if digest != expected[name]:
            raise CheckpointError(
                f"{folder / name} is damaged: its SHA-256 is not the one in {NAME}; convert or copy {folder} again"
            )
    return len(there)


def _read(file: Path) -> dict[str, str]:
    """Digest by name."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise CheckpointError(f"{file} is missing; convert or copy its folder again") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    found = [_LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise CheckpointError(f"{file} is damaged: line {found.index(None) + 1} is no SHA-256 and name under params/")
    return {line[2]: line[1] for line in found if line}


def _files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files_under(folder / "params")]


def digests(folder: Path, names: Iterable[str], done: Callable[[int], None] = _NOTHING) -> dict[str, str]:
    """Digest by name in the folder, several files at once; `done` gets the bytes of each."""

    def digest(name: str) -> tuple[str, str]:
        try:
            with (folder / name).open("rb") as file:
                return name, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}") from error

    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, digits in pool.map(digest, names):
            found[name] = digits
            done((folder / name).stat().st_size)
    return found


def fingerprint(*trees: Any) -> str:
    """SHA-256 of all arrays in pytrees, with their names, dtypes and shapes. Collective where arrays are sharded."""
    found = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(trees):
        host = processes.fetch(leaf) if isinstance(leaf, jax.Array) else leaf  # one at a time, to limit host memory
        array = np.ascontiguousarray(host)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        found.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return found.hexdigest()
