"""Tensors of a source → Orbax parameters: matched by name and shape first, then streamed one by one."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from flax import nnx
from rich import filesize

from jaxspec.checkpoint import heads, parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import HeadConfig
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


@dataclasses.dataclass(frozen=True)
class Expected:
    """Shape that a tensor must have in the file."""

    shape: tuple[int, ...]


def match(model: nnx.Module, found: Source, theirs: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """Our name → tensor, for exactly the parameters of an abstract module.

    Args:
        found: the tensors of the source, all of which must have a place in the model.
        theirs: what the source calls a parameter of ours.
        where: the source, as errors name it.
    """
    expected = parameters.module_to_dict(model)
    shape = lambda ours, leaf: (*leaf.shape[:-2], *leaf.shape[:-3:-1]) if is_kernel(ours) else leaf.shape
    wanted = {theirs(ours): Expected(shape(ours, leaf)) for ours, leaf in expected.items()}
    parameters.check_names(wanted, found, where)
    return {ours: found[theirs(ours)] for ours in sorted(expected, key=parameters.natural)}


def main_dtype(tensors: Iterable[Tensor]) -> str:
    """The dtype of most bytes."""
    weight = Counter[str]()
    for tensor in tensors:
        weight[tensor.dtype] += tensor.nbytes
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
    tensors: dict[str, Tensor],
    dtype: str | None,
    folder: Path,
    out: Path,
    title: str,
    quantize: str | None = None,
) -> None:
    """Writes the parameters of a model into `folder`, which is to become `out`.

    They are cast to `dtype` if one is given, and the kernels quantised if that is wanted.
    """
    size = total_bytes(tensors, dtype, quantize)
    with progress(f"converting {title}:", size, form=filesize.decimal) as shown, deferred() as interrupts:
        params = _counted(_stream(tensors, dtype, quantize), out, size, shown.advance, interrupts.release)
        parameters.write_params(folder / "params", params, max(size // _GROUPS, _SMALLEST_GROUP))


def write_head(
    source: Path, out: Path, config: HeadConfig, tensors: dict[str, Tensor], dtype: str | None, kind: str
) -> None:
    """Writes the head `out` from the tensors of `source`, and says so; `kind` is what it is called then."""
    with staged(out, total_bytes(tensors, dtype)) as folder:
        heads.write_config(folder, config)
        write_params(tensors, dtype, folder, out, source.name or str(source))
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


def _counted(
    params: Iterator[tuple[str, Any]],
    out: Path,
    left: int,
    advance: Callable[[int], None],
    let_interrupts_through: Callable[[], None],
) -> Iterator[tuple[str, Any]]:
    """The same pairs, counted, and stopped before the disk is full: Orbax's threads each end in a traceback there."""
    for name, array in params:
        let_interrupts_through()
        size = array.nbytes
        check_room(out, left)
        yield name, array
        del array
        left -= size
        advance(size)


def _check_finite(array: np.ndarray, tensor: Tensor) -> None:
    flat = array.reshape(-1)
    # In blocks: the mask of a whole embedding would be a gigabyte.
    if not all(np.isfinite(flat[start : start + _BLOCK]).all() for start in range(0, flat.size, _BLOCK)):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} holds NaN or infinite values; the checkpoint is damaged"
        )
