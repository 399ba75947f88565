"""Turns files into documents, and documents into windows of tokens.

Packing: documents, each from BOS to EOS, are joined and cut into windows of equal length; no token is lost or repeated.
`segment` gives each token's document, to which attention is limited. A cut document continues as a new one.
"""

import dataclasses
import gzip
import json
import sysconfig
import zlib
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import chex
import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from jaxspec.host.buckets import files_under
from jaxspec.host.json_lines import parquet_rows
from jaxspec.host.terminal import say

HELD_OUT = 40  # one name in this many is held out
PARQUET, GZIP = ".parquet", ".gz"
_SHOWN = 3  # most names in a message
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data"}

T = TypeVar("T")
Array = np.ndarray | jax.Array


@dataclasses.dataclass(frozen=True)
class Document:
    """The text of a file, with its path inside the folder of data; `complete` is false if its end was cut off."""

    name: str
    text: str
    complete: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """The tokens of one document or conversation, and whether the prediction of each counts in the loss."""

    tokens: Int32[np.ndarray, " T"]
    counted: Bool[np.ndarray, " T"]


@chex.dataclass(frozen=True)
class Windows:
    """Packed tokens: B windows of T tokens."""

    tokens: Int[Array, "B T"]
    segment: Int[Array, "B T"]  # number of each token's document
    counted: Bool[Array, "B T"]  # whether the prediction of each token counts in the loss
    index: Int[Array, " B"] | None = None  # number of each window among all, from `dataset.batches`
    features: Float[Array, "B T D"] | None = None  # the target's features, if they are cached; None: to be computed
    taps: tuple[Float[Array, "B T D"], ...] = ()  # with `features`, the inputs of the layers that the drafter reads


def documents(folder: Path, pattern: str = "*", without: Collection[str] = ()) -> list[Document]:
    """All text files in a folder and its subfolders that match the pattern, by name.

    Files that are hidden, and those in folders named in `without`, are left out. So are empty ones, and those that are
    not UTF-8, with a message on stderr. Raises ValueError if none is left.
    """
    inside = [(path.relative_to(folder), path) for path in files_under(folder) if path.match(pattern)]
    is_out = lambda part: part.startswith(".") or part in without
    chosen = {name.as_posix(): path for name, path in inside if not any(map(is_out, name.parts))}
    with ThreadPoolExecutor() as pool:  # a request to a bucket takes as long as reading a file of some MB
        files = sorted(zip(chosen, pool.map(_text, chosen.values()), strict=True))
    if other := [name for name, text in files if text is None]:
        more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        say(f"left out {len(other)} of {len(files)} files, which are not UTF-8 text: {', '.join(other[:_SHOWN])}{more}")
    if not (texts := [Document(name, text) for name, text in files if text]):
        raise ValueError(f"{folder} holds no text: no file in it is UTF-8 and not empty")
    return texts


def document(path: Path) -> Document:
    """One text file, with its file name. Raises ValueError if it is not a file, or holds no text."""
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder; name one that holds text")
    if not (content := _text(path)):
        raise ValueError(f"{path} holds no text: it is empty or not UTF-8")
    return Document(path.name, content)


def standard_library() -> list[Document]:
    """The source of the running Python's standard library, without test suites and installed packages.

    `encodings` and `pydoc_data` are left out too: they are a sixth of the text, and mostly tables.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    try:
        return documents(folder, "*.py", _NOT_LIBRARY)
    except ValueError as error:
        raise ValueError(
            f"this Python has no source of its standard library at {folder}; name a folder with --data"
        ) from error


def suffix_of(name: str) -> str:
    """The suffix of a file's name in lower case, without `.gz`: `.jsonl` for `a.jsonl.gz`."""
    return Path(name.lower().removesuffix(GZIP)).suffix


def _text(path: Path) -> str | None:
    """The text of a file, unpacked if it is gzipped; the rows of a Parquet file as JSON lines. None if it is not text.

    Raises ValueError for a Parquet file that cannot be read.
    """
    if path.suffix.lower() == PARQUET:
        return "".join(json.dumps(row, default=str) + "\n" for row in parquet_rows(path, str(path)))
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix.lower() == GZIP else content
        return None if b"\0" in content else content.decode("utf-8")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error):
        return None


def is_held_out(name: str) -> bool:
    """Whether a name is held out from training, by a hash of it, which is the same in all runs and on all machines."""
    return zlib.crc32(name.encode()) % HELD_OUT == 0


def windows(encoded: Sequence[Encoded], length: int, fill: int) -> Windows:
    """Packs encoded documents into windows of `length` tokens. The last is padded with `fill`, which does not count."""
    sizes = [len(each.tokens) for each in encoded]
    padding, shape = -sum(sizes) % length, lambda row, dtype: row.reshape(-1, length).astype(dtype)
    return Windows(
        tokens=shape(np.concatenate([*(each.tokens for each in encoded), np.full(padding, fill)]), np.int32),
        segment=shape(np.repeat(np.arange(len(encoded) + 1), [*sizes, padding]), np.int32),
        counted=shape(np.concatenate([*(each.counted for each in encoded), np.zeros(padding, bool)]), bool),
    )


def join(parts: Sequence[T]) -> T:
    """Pytrees of arrays as one, joined along the first axis."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def take(arrays: T, rows: np.ndarray | slice) -> T:
    """These rows of a pytree of arrays."""
    return jax.tree.map(lambda array: array[rows], arrays)
