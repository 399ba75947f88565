"""The target's features on disk: for small runs that see the same windows again and again."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from rich import filesize

from jaxspec.convert.files import check_room
from jaxspec.convert.progress import say
from jaxspec.llama import Llama
from jaxspec.train.packed import hidden_states
from jaxspec.train.text import Windows


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
    count, length = packed.tokens.shape
    dtype, width = target.norm[...].dtype, target.config.hidden_size
    weights = hashlib.sha256(np.asarray(target.norm[...]).tobytes())
    weights.update(np.asarray(target.layers[-1].mlp.down.kernel[...]).tobytes())
    weights.update(np.asarray(packed.tokens).tobytes())
    of = {"shape": [count, length, width], "dtype": dtype.name, "of": weights.hexdigest()}
    file, plain = folder / "features.json", np.dtype(f"u{dtype.itemsize}")
    if file.exists():
        if json.loads(file.read_text(encoding="utf-8")) != of:
            raise ValueError(
                f"{folder} holds the features of another target or text; name another folder with --cache-features"
            )
        mode = "r+"
    else:
        size = count * length * width * dtype.itemsize
        say(f"the features of {count * length:,} tokens will take {filesize.decimal(size)} in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        check_room(folder / "features.npy", size)
        mode = "w+"
    on_disk = partial(np.lib.format.open_memmap, mode=mode)
    if mode == "w+":
        rows = on_disk(folder / "features.npy", dtype=plain, shape=(count, length, width))
        known = on_disk(folder / "known.npy", dtype=bool, shape=(count,))
        file.write_text(json.dumps(of) + "\n", encoding="utf-8")
    else:
        rows, known = on_disk(folder / "features.npy"), on_disk(folder / "known.npy")
    return Cache(target, dtype, rows, known, jax.jit(hidden_states))
