"""The target's features on disk or in a bucket, for small runs that see the same windows repeatedly."""

import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
import numpy as np
from rich import filesize

from jaxspec.checkpoint.checksums import fingerprint
from jaxspec.host import processes
from jaxspec.host.atomic import check_room, write_whole
from jaxspec.host.json_lines import check_same_settings
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.model.sharding import shard_batch
from jaxspec.train.data.dataset import read_array
from jaxspec.train.data.text import Windows
from jaxspec.train.run.packed import target_features

_FILES = "window-*.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
    """The target's features of N windows, and the inputs of tapped layers, computed on first use.

    The first process writes, and all processes must see the folder. The file of a window has its features and then each
    tap, [1 + taps, T, D], as unsigned integers of the same width, because NumPy has no bfloat16.
    """

    folder: Path
    target: Llama
    known: np.ndarray  # [N] bool, the windows that are stored; the same in all processes
    compute: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]  # `target_features`

    def complete(self, batch: Windows) -> Windows:
        """The batch with its features and taps. Those that are not stored yet are computed and stored."""
        assert batch.index is not None, "the windows are not numbered"
        index = np.asarray(batch.index).tolist()
        if not self.known[index].all():
            # All rows are computed, because results may differ in the last bits for another batch size.
            features, taps = processes.fetch(self.compute(self.target, shard_batch(batch)))
            if processes.is_first():
                for number, *window in zip(index, features, *taps, strict=True):
                    stacked = np.stack(window)
                    np.save(content := io.BytesIO(), stacked.view(f"u{stacked.dtype.itemsize}"))
                    write_whole(self._file(number), content.getvalue())
            self.known[index] = True
            processes.wait()
        joined = np.stack([read_array(self._file(number)) for number in index], axis=1)
        features, *taps = joined.view(self.target.dtype)
        return dataclasses.replace(batch, features=features, taps=tuple(taps))

    def _file(self, number: int) -> Path:
        return self.folder / f"window-{number}.npy"


def open_cache(folder: Path, target: Llama, packed: Windows, taps: Sequence[int] = ()) -> Cache:
    """The cache of all windows `packed` in a folder, created if there is none; it also stores inputs of layers `taps`.

    Raises ValueError if the folder holds features of another target or text, or other taps; DiskFullError.
    """
    shape = (*packed.tokens.shape, target.config.hidden_size)
    content = fingerprint(target, packed.tokens, packed.segment)
    settings = {"dtype": target.dtype.name, "the hash of target and text": content}
    settings |= {"the layers": [*taps], "shape": [*shape]}
    file = folder / "features.json"
    if processes.is_first() and not file.exists():
        size = int(np.prod(shape)) * target.dtype.itemsize * (1 + len(taps))
        say(f"the features of {packed.tokens.size:,} tokens will take {filesize.decimal(size)} in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob(_FILES)):
            raise ValueError(f"{folder} holds features but no {file.name}; name another folder with --cache-features")
        check_room(file, size)
        write_whole(file, json.dumps(settings) + "\n")  # before any window
    processes.wait()
    check_same_settings(folder, json.loads(file.read_text(encoding="utf-8")), settings, "another --cache-features")
    known = np.zeros(len(packed.tokens), bool)
    stored = lambda: [int(file.stem.partition("-")[2]) for file in folder.glob(_FILES)]
    known[processes.broadcast_from_first(stored)] = True
    return Cache(folder, target, known, jax.jit(partial(target_features, taps=tuple(taps))))
