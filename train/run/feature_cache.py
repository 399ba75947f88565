"""The target's features on disk, for small runs that see the same windows repeatedly."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from rich import filesize

from jaxspec.checkpoint.checksums import fingerprint
from jaxspec.host import processes
from jaxspec.host.atomic import check_room, write_whole
from jaxspec.host.buckets import check_local
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.model.sharding import shard_batch
from jaxspec.train.data.text import Windows
from jaxspec.train.run.packed import target_features

_KNOWN = "known.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
    """The target's features of N windows of T tokens, and the inputs of tapped layers, computed on first use.

    The first process writes; all processes must see the folder. Features and taps are [N, T, D], stored as unsigned
    integers of the same width, because NumPy has no bfloat16.
    """

    folder: Path
    files: tuple[str, ...]  # file names of the features, then of each tap
    target: Llama
    known: np.ndarray  # [N] bool, the windows that are stored; the same in all processes, and on disk
    compute: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]  # `target_features`

    def complete(self, batch: Windows) -> Windows:
        """The batch with its features and taps. Those that are not stored yet are computed and stored."""
        assert batch.index is not None, "the windows are not numbered"
        index = np.asarray(batch.index)
        if not self.known[index].all():
            # All rows are computed, because results may differ in the last bits for another batch size.
            features, taps = processes.fetch(self.compute(self.target, shard_batch(batch)))
            if processes.is_first():
                for name, found in zip(self.files, (features, *taps), strict=True):
                    self._write(name, index, found)
                self._write(_KNOWN, index, np.ones(len(index), bool))  # last, so that a kill leaves no false mark
            self.known[index] = True
            processes.wait()
        # Opened again, because a shared file system may show another process's writes only after that.
        rows = (np.load(self.folder / name, mmap_mode="r")[index] for name in self.files)
        features, *taps = (found.view(self.target.dtype) for found in rows)
        return dataclasses.replace(batch, features=features, taps=tuple(taps))

    def _write(self, name: str, index: np.ndarray, found: np.ndarray | jax.Array) -> None:
        rows = np.load(self.folder / name, mmap_mode="r+")
        rows[index] = np.asarray(found).view(rows.dtype)
        if jax.process_count() > 1:
            rows.flush()


def open_cache(folder: Path, target: Llama, packed: Windows, taps: Sequence[int] = ()) -> Cache:
    """The cache of all windows `packed` in a folder, created if there is none; it also stores inputs of layers `taps`.

    Raises:
        ValueError: the folder holds features of another target or text, or other taps.
        DiskFullError: the disk has too little space.
    """
    check_local(folder, "--cache-features")
    dtype, shape = target.dtype, (*packed.tokens.shape, target.config.hidden_size)
    data = fingerprint(target, packed.tokens, packed.segment)
    of = {"shape": [*shape], "dtype": dtype.name, "of": data, "taps": [*taps]}
    file, names = folder / "features.json", ("features.npy", *(f"tap-{tap}.npy" for tap in taps))
    if processes.is_first() and not file.exists():
        _make(folder, names, shape, dtype)
        write_whole(file, json.dumps(of) + "\n")  # written last: it marks the cache as complete
    processes.wait()
    if json.loads(file.read_text(encoding="utf-8")) != of:
        raise ValueError(
            f"{folder} holds the features of another target or text, or other layers; name another folder with "
            "--cache-features"
        )
    return Cache(folder, names, target, np.load(folder / _KNOWN), jax.jit(partial(target_features, taps=tuple(taps))))


def _make(folder: Path, names: Sequence[str], shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    """Creates empty files, and overwrites those of a killed run."""
    size = math.prod(shape) * dtype.itemsize * len(names)
    say(f"the features of {shape[0] * shape[1]:,} tokens will take {filesize.decimal(size)} in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    check_room(folder / _KNOWN, size)
    kinds = dict.fromkeys(names, (f"u{dtype.itemsize}", shape)) | {_KNOWN: ("bool", shape[:1])}
    for name, (kind, width) in kinds.items():
        np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.dtype(kind), shape=width).flush()
