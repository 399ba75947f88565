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

# A model is written in about this many groups: enough to keep each small, few enough for Orbax to merge.
_GROUPS = 64
_SMALLEST_GROUP = 32 * 2**20
_BLOCK = 2**22


def match(model: nnx.Module, found: Source, theirs: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """The source tensor of each parameter of an abstract module.

    Args:
        found: the tensors of the source; all of them must be used.
        theirs: maps a jaxspec name to the source's name.
        where: name of the source for error messages.

    Raises:
        CheckpointError: a tensor is missing, unknown, or has another shape.
    """
    expected = parameters.module_to_dict(model)
    shape = lambda ours, leaf: (*leaf.shape[:-2], *leaf.shape[:-3:-1]) if is_kernel(ours) else leaf.shape
    wanted = {theirs(ours): jax.ShapeDtypeStruct(shape(ours, leaf), leaf.dtype) for ours, leaf in expected.items()}
    parameters.check_names(wanted, found, where)
    return {ours: found[theirs(ours)] for ours in sorted(expected, key=parameters.natural)}


def main_dtype(tensors: Iterable[Tensor]) -> str:
    """The dtype that has the most bytes."""
    weight = Counter[str]()
    for tensor in tensors:
        weight[tensor.dtype] += math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
    return weight.most_common(1)[0][0]


def total_bytes(tensors: Mapping[str, Tensor], dtype: str | None, quantize: str | None = None) -> int:
    """Bytes on disk of the tensors in `dtype` (None: each in its own), with kernels quantised to `quantize`."""

    def size(ours: str, tensor: Tensor) -> int:
        kind = None if quantize is None else kind_of(ours, quantize)
        of_dtype = np.dtype(dtype or tensor.dtype).itemsize
        # On disk int4 takes a byte too. Scales take at most 1/32 of the values.
        return math.prod(tensor.shape) * of_dtype if kind is None else math.prod(tensor.shape) * 33 // 32

    return sum(size(ours, tensor) for ours, tensor in tensors.items())


def write_params(
    tensors: dict[str, Tensor], dtype: str | None, source: Path, folder: Path, out: Path, quantize: str | None = None
) -> None:
    """Writes the parameters of the model in `source` to `folder`, which will become `out`, with checksums.

    They are cast to `dtype`, if given, and kernels are quantised to `quantize`, if given.
    """
    size = total_bytes(tensors, dtype, quantize)
    title = f"converting {source.name or source}:"
    with progress(title, size, form=filesize.decimal) as shown, deferred() as interrupts:

        def counted() -> Iterator[tuple[str, Any]]:
            """Stops before the disk is full, because Orbax's threads would end in tracebacks."""
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
    """Writes the head `out` from the tensors of `source`, and reports it; `kind` is its name in the message."""
    with staged(out, total_bytes(tensors, dtype)) as folder:
        write_params(tensors, dtype, source, folder, out)
        heads.write_config(folder, config)
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    say(f"wrote {out}: {kind}, {count:,} parameters, {config.dtype}")


def _stream(tensors: dict[str, Tensor], dtype: str | None, quantize: str | None) -> Iterator[tuple[str, Any]]:
    """Yields jaxspec's names and arrays, with one tensor in memory at a time. Quantisation starts from the source's
    dtype.

    On several hosts, each reads every tensor and keeps its own part.
    """
    for ours, tensor in tensors.items():
        kept = dtype is None or (quantize is not None and kind_of(ours, quantize) is not None)
        kept = kept and tensor.dtype != "float64"
        array = tensor.read()
        with np.errstate(over="ignore"):  # what overflows is refused as infinite
            array = np.ascontiguousarray(turned(ours, array), dtype=None if kept else np.dtype(dtype))
        _check_finite(array, tensor)
        packed = pack(ours, array, quantize)
        del array  # frees its memory before the next one is read
        for name in list(packed):
            yield name, processes.spread(np.asarray(packed.pop(name)))


def _check_finite(array: np.ndarray, tensor: Tensor) -> None:
    flat = array.reshape(-1)
    # In blocks, because the mask of a whole embedding would take a gigabyte.
    if not all(np.isfinite(flat[start : start + _BLOCK]).all() for start in range(0, flat.size, _BLOCK)):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} holds NaN or infinite values; the checkpoint is damaged"
        )
