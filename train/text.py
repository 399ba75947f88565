"""Files → documents → windows of tokens.

Packing: documents, each from BOS to EOS, are laid end to end and the row is cut into windows of equal length. No token
is lost or seen twice; `segment` says which document a token is of, so that attention stays inside it. A document that
is cut goes on in the next window as if it began there.
"""

import dataclasses
import itertools
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import chex
import jax
import numpy as np
from jaxtyping import Bool, Int

HELD_OUT = 40  # one file in so many
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}

Array = np.ndarray | jax.Array


@dataclasses.dataclass(frozen=True)
class Document:
    """The text of a file and its name: the path inside its folder, the same on every machine."""

    name: str
    text: str


@chex.dataclass(frozen=True)
class Windows:
    """Packed tokens, B windows of T.

    Attributes:
        segment: number of the document that a token is of.
        counted: whether predicting this token counts in the loss.
    """

    tokens: Int[Array, "B T"]
    segment: Int[Array, "B T"]
    counted: Bool[Array, "B T"]


def documents(folder: Path) -> list[Document]:
    """Every text file under a folder, by name. Hidden files and what is not UTF-8 are left out.

    Raises:
        ValueError: not a folder, or no text in it.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name one that holds text files")
    found = _read(folder, "*", lambda parts: not any(part.startswith(".") for part in parts))
    if not found:
        raise ValueError(f"{folder} holds no text: no file in it is UTF-8 and not empty")
    return found


def standard_library() -> list[Document]:
    """The source of the running Python's standard library, without its test suites and what was installed beside it.

    Raises:
        ValueError: this Python came without source.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    found = _read(folder, "*.py", _NOT_LIBRARY.isdisjoint)
    if not found:
        raise ValueError(f"this Python has no source of its standard library at {folder}; name a folder with --data")
    return found


def _read(folder: Path, pattern: str, wanted: Callable[[tuple[str, ...]], bool]) -> list[Document]:
    """The non-empty UTF-8 files that match, those only whose path inside the folder is wanted."""
    found = []
    for path in folder.rglob(pattern):
        inside = path.relative_to(folder)
        if wanted(inside.parts) and path.is_file() and (text := _text(path)):
            found.append(Document(inside.as_posix(), text))
    return sorted(found, key=lambda document: document.name)


def _text(path: Path) -> str | None:
    """What a file says; None where it is not text."""
    content = path.read_bytes()
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def is_held_out(name: str) -> bool:
    """Whether the file of this name is kept from training: a hash of it decides, so all runs and machines agree."""
    return zlib.crc32(name.encode()) % HELD_OUT == 0


def split(found: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """The documents to train on, and those held out."""
    kept: tuple[list[Document], list[Document]] = ([], [])
    for document in found:
        kept[is_held_out(document.name)].append(document)
    return kept


def windows(encoded: Sequence[np.ndarray], length: int, fill: int) -> Windows:
    """Packs encoded documents into windows; the last one is filled up with `fill`, which does not count."""
    total = sum(map(len, encoded))
    padding = -total % length
    segment = np.repeat(np.arange(len(encoded) + 1), [*map(len, encoded), padding])
    tokens = np.concatenate([*encoded, np.full(padding, fill)])
    shape = lambda row, dtype: row.reshape(-1, length).astype(dtype)
    return Windows(
        tokens=shape(tokens, np.int32),
        segment=shape(segment, np.int32),
        counted=shape(np.arange(total + padding) < total, bool),
    )


def take(packed: Windows, rows: np.ndarray | slice) -> Windows:
    """Some of the windows."""
    return Windows(tokens=packed.tokens[rows], segment=packed.segment[rows], counted=packed.counted[rows])


def batches(packed: Windows, size: int, seed: int) -> Iterator[Windows]:
    """Endless batches: each epoch shuffles the windows anew and leaves out those that fill no batch.

    Raises:
        ValueError: fewer windows than a batch holds.
    """
    count, length = packed.tokens.shape
    if count < size:
        raise ValueError(
            f"there is too little text: it fills {count} windows of {length} tokens and a batch takes {size}; "
            "add text, or lower --batch-size or --context"
        )
    for epoch in itertools.count():
        order = np.random.default_rng((seed, epoch)).permutation(count)
        for start in range(0, count - size + 1, size):
            yield take(packed, order[start : start + size])
