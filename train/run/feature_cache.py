"""The target's features on disk: for small runs that see the same windows again and again."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from rich import filesize

from jaxspec.host.atomic import check_room, write_whole
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.methods.packed import hidden_states
from jaxspec.train.run.fingerprint import fingerprint

_FEATURES, _KNOWN = "features.npy", "known.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
    """Features of N windows of T tokens, filled in as they are asked for.

    Attributes:
        rows: [N, T, D] on disk, as the integers of the same width where NumPy cannot name their dtype.
        known: [N] on disk; which are there.
    """

    target: Llama
    dtype: jnp.dtype
    rows: np.ndarray
    known: np.ndarray
    compute: Callable[..., jax.Array]

    def complete(self, batch: Windows) -> Windows:
        """The batch with its features, computed and kept where they are not known."""
        assert batch.index is not None, "the windows are not numbered"
        index = np.asarray(batch.index)
        if not self.known[index].all():
            # All rows, although some may be known: of another batch size a row may differ in its last bits.
            found = np.asarray(self.compute(self.target, jnp.asarray(batch.tokens), jnp.asarray(batch.segment)))
            self.rows[index] = found.view(self.rows.dtype)
            self.known[index] = True  # after the features, so that a killed run believes nothing too early
        return dataclasses.replace(batch, features=self.rows[index].view(self.dtype))


def open_cache(folder: Path, target: Llama, packed: Windows) -> Cache:
    """The cache in a folder, made if there is none.

    Raises:
        ValueError: the folder holds features of another target or text.
        DiskFullError: no room for them.
    """
    dtype = target.norm[...].dtype
    of = {
        "shape": [*packed.tokens.shape, target.config.hidden_size],
        "dtype": dtype.name,
        "of": fingerprint(target, packed.tokens, packed.segment),
    }
    file = folder / "features.json"
    if not file.exists():
        _make(folder, of["shape"], dtype)
        write_whole(file, json.dumps(of) + "\n")  # last: without it the folder holds no cache
    elif json.loads(file.read_text(encoding="utf-8")) != of:
        raise ValueError(
            f"{folder} holds the features of another target or text; name another folder with --cache-features"
        )
    rows, known = (np.load(folder / name, mmap_mode="r+") for name in (_FEATURES, _KNOWN))
    return Cache(target, dtype, rows, known, jax.jit(hidden_states))


def _make(folder: Path, shape: Sequence[int], dtype: jnp.dtype) -> None:
    """Files for features of this shape, of which none is known; what a killed run left of them is written over."""
    size = math.prod(shape) * dtype.itemsize
    say(f"the features of {shape[0] * shape[1]:,} tokens will take {filesize.decimal(size)} in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    check_room(folder / _FEATURES, size)
    for name, kind, width in ((_FEATURES, f"u{dtype.itemsize}", tuple(shape)), (_KNOWN, "bool", (shape[0],))):
        np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.dtype(kind), shape=width).flush()
