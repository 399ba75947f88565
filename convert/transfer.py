"""Writes tensors of a source as Orbax parameters: first matches names and shapes, then streams tensor by tensor."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from rich import filesize

from jaxspec.checkpoint import checksums, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.names import is_kernel, turned
from jaxspec.convert.readers import Source, Tensor
from jaxspec.host import processes
from jaxspec.host.atomic import check_room, staged
from jaxspec.host.interrupts import deferred
from jaxspec.host.progress import progress
from jaxspec.host.terminal import say
from jaxspec.model.quantization import kind_of, pack

# A model is written in about this many groups: enough to keep a group small, few enough for Orbax, which merges them.
_GROUPS = 64
_SMALLEST_GROUP = 32 * 2**20
_BLOCK = 2**22


def match(model: nnx.Module, found: Source, theirs: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """Our name → tensor, for exactly the parameters of an abstract module.

    Args:
        found: the tensors of the source, all of which must have a place in the model.
        theirs: what the source calls a parameter of ours.
        where: the source, as errors name it.
    """
    expected = parameters.module_to_dict(model)
    shape = lambda ours, leaf: (*leaf.shape[:-2], *leaf.shape[:-3:-1]) if is_kernel(ours) else leaf.shape
    wanted = {theirs(ours): jax.ShapeDtypeStruct(shape(ours, leaf), leaf.dtype) for ours, leaf in expected.items()}
    parameters.check_names(wanted, found, where)
    return {ours: found[theirs(ours)] for ours in sorted(expected, key=parameters.natural)}


def main_dtype(tensors: Iterable[Tensor]) -> str:
    """The dtype of most bytes."""
    weight = Counter[str]()
    for tensor in tensors:
        weight[tensor.dtype] += math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
    return weight.most_common(1)[0][0]


def total_bytes(tensors: Mapping[str, Tensor], dtype: str | None, quantize: str | None = None) -> int:
    """Bytes on disk of the tensors in `dtype` (None keeps each one's own), their kernels quantised if wanted."""

    def size(ours: str, tensor: Tensor) -> int:
        kind = None if quantize is None else kind_of(ours, quantize)
        of_dtype = np.dtype(dtype or tensor.dtype).itemsize
        # int4 takes a byte too, on disk; the scales are 1/32 of that, or less.
        return math.prod(tensor.shape) * of_dtype if kind is None else math.prod(tensor.shape) * 33 // 32

    return sum(size(ours, tensor) for ours, tensor in tensors.items())


def write_params(
    tensors: dict[str, Tensor], dtype: str | None, source: Path, folder: Path, out: Path, quantize: str | None = None
) -> None:
    """Writes the parameters of the model in `source` into `folder`, which is to become `out`.

    They are cast to `dtype` if one is given, and the kernels quantised if that is wanted; checksums go beside them.
    """
    size = total_bytes(tensors, dtype, quantize)
    title = f"converting {source.name or source}:"
    with progress(title, size, form=filesize.decimal) as shown, deferred() as interrupts:

        def counted() -> Iterator[tuple[str, Any]]:
            """Stops before the disk is full: Orbax's threads each end in a traceback there."""
            for name, array in _stream(tensors, dtype, quantize):
                interrupts.release()
                check_room(out, size - shown.done)
                shown.advance(array.nbytes)
                yield name, array
                del array

        parameters.write_params(folder / "params", counted(), max(size // _GROUPS, _SMALLEST_GROUP))
    checksums.write(folder)


def write_head(
    source: Path, out: Path, config: heads.HeadConfig, tensors: dict[str, Tensor], dtype: str | None, kind: str
) -> None:
    """Writes the head `out` from the tensors of `source`, and says so; `kind` is what it is called then."""
    with staged(out, total_bytes(tensors, dtype)) as folder:
        write_params(tensors, dtype, source, folder, out)
        heads.write_config(folder, config)
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    say(f"wrote {out}: {kind}, {count:,} parameters, {config.dtype}")


def _stream(tensors: dict[str, Tensor], dtype: str | None, quantize: str | None) -> Iterator[tuple[str, Any]]:
    """Our names and arrays, one tensor in memory at a time. What is quantised is so from the source's own dtype.

    On several hosts each reads every tensor and keeps a part of it, to write.
    """
    for ours, tensor in tensors.items():
        kept = dtype is None or (quantize is not None and kind_of(ours, quantize) is not None)
        array = tensor.read()
        array = np.ascontiguousarray(turned(ours, array), dtype=None if kept else np.dtype(dtype))
        _check_finite(array, tensor)
        packed = pack(ours, array, quantize)
        del array  # or the next one would be read beside it
        for name in list(packed):
            yield name, processes.spread(np.asarray(packed.pop(name)))


def _check_finite(array: np.ndarray, tensor: Tensor) -> None:
    flat = array.reshape(-1)
    # In blocks: the mask of a whole embedding would be a gigabyte.
    if not all(np.isfinite(flat[start : start + _BLOCK]).all() for start in range(0, flat.size, _BLOCK)):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} holds NaN or infinite values; the checkpoint is damaged"
        )
