"""Packed windows on disk, and the stream of batches from them, whose place checkpoints remember (grain)."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np

from jaxspec.host.atomic import staged
from jaxspec.train.data.text import Windows

ENDLESS = 2**31  # epochs
_FIELDS = ("tokens", "segment", "counted")


def write(folder: Path, packed: Windows) -> None:
    """Writes windows, whole or not at all."""
    with staged(folder, sum(getattr(packed, name).nbytes for name in _FIELDS)) as place:
        for name in _FIELDS:
            np.save(place / f"{name}.npy", getattr(packed, name))


def read(folder: Path) -> Windows:
    """The windows in a folder, left on disk until they are looked at."""
    return Windows(**{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _FIELDS})


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """What grain reads: one window at a time, as named arrays."""

    packed: Windows

    def __len__(self) -> int:
        return len(self.packed.tokens)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"index": np.int32(index), **{name: np.asarray(getattr(self.packed, name)[index]) for name in _FIELDS}}


def batches(packed: Windows, size: int, seed: int) -> grain.DatasetIterator:
    """Endless batches of windows; every epoch shuffles them anew.

    Raises:
        ValueError: fewer windows than a batch holds.
    """
    source = Source(packed)
    if len(source) < size:
        raise ValueError(
            f"there is too little text: it fills {len(source)} windows of {packed.tokens.shape[1]} tokens and a batch "
            f"takes {size}; add text, or lower --batch-size or --context"
        )
    # An endless length of its own, as grain's does not fit batches of one.
    endless = grain.MapDataset.source(source).seed(seed).shuffle().repeat(ENDLESS).batch(size)
    whole: Callable[[dict], Windows] = lambda rows: Windows(**rows)
    return iter(endless.map(whole).to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))
