"""Tensors of a source to Orbax parameters, and back to safetensors: matched by name and shape, then streamed."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from rich import filesize

from jaxspec.checkpoint import checksums, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert.names import is_kernel, turned
from jaxspec.convert.readers import Source, Tensor
from jaxspec.host import processes
from jaxspec.host.atomic import check_room
from jaxspec.host.buckets import in_bucket
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import progress
from jaxspec.model.quantization import group_size, kind_of, pack

# A model is written in about this many groups: enough to keep each small, few enough for Orbax to merge.
_GROUPS = 64
_SMALLEST_GROUP = 32 * 2**20
_BLOCK = 2**22
# Files have one tensor per expert, which jaxspec stacks in one array.
_ONE_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(w[123]\.weight)")
_EXPERTS = re.compile(r"(.*\.experts)\.(w[123]\.weight)")


def match(model: nnx.Module, tensors: Source, theirs: Callable[[str], str], where: str) -> dict[str, Tensor]:
    """The tensor of each parameter of an abstract module; `theirs` maps names. Raises CheckpointError about `where`."""
    expected = parameters.module_to_dict(model)
    shape = lambda ours, leaf: (*leaf.shape[:-2], *leaf.shape[:-3:-1]) if is_kernel(ours) else leaf.shape
    wanted = {theirs(ours): jax.ShapeDtypeStruct(shape(ours, leaf), leaf.dtype) for ours, leaf in expected.items()}
    parameters.check_names(wanted, tensors, where)
    return {ours: tensors[theirs(ours)] for ours in sorted(expected, key=parameters.natural)}


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
        elements = math.prod(tensor.shape)
        if kind is None:
            return elements * np.dtype(dtype or tensor.dtype).itemsize
        # On disk int4 takes a byte too. A scale takes four; the source has a kernel's inputs last.
        return elements + 4 * elements // group_size(kind, tensor.shape[-1])

    return sum(size(ours, tensor) for ours, tensor in tensors.items())


def write_params(
    tensors: dict[str, Tensor], dtype: str | None, source: Path, folder: Path, out: Path, quantize: str | None = None
) -> None:
    """Writes parameters, cast and with kernels quantised if wanted, and checksums into `folder`, to become `out`."""
    size = total_bytes(tensors, dtype, quantize)
    title = f"converting {source.name or source}:"
    with progress(title, size, form=filesize.decimal) as shown, deferred() as interrupts:

        def counted() -> Iterator[tuple[str, Any]]:
            # Stops before the disk is full, because Orbax's threads would end in tracebacks.
            for name, array in stream(tensors, dtype, quantize):
                interrupts.release()
                check_room(out, size - shown.done)
                shown.advance(array.nbytes)
                yield name, processes.split_over_hosts(array)
                del array

        parameters.write_params(folder / "params", counted(), group_bytes(size))
    checksums.write(folder)


def group_bytes(total: int) -> int:
    """Bytes that are written at once, of parameters with `total` bytes."""
    return max(total // _GROUPS, _SMALLEST_GROUP)


def stream(tensors: Mapping[str, Tensor], dtype: str | None, quantize: str | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields jaxspec's names and arrays, cast and quantised if wanted, with one tensor in memory at a time."""
    for ours, tensor in tensors.items():
        # Quantisation starts from the source's dtype.
        kept = dtype is None or (quantize is not None and kind_of(ours, quantize) is not None)
        kept = kept and tensor.dtype != "float64"
        array = tensor.read()
        with np.errstate(over="ignore"):  # what overflows is refused as infinite
            cast = np.ascontiguousarray(turned(ours, array), dtype=None if kept else np.dtype(dtype))
        if not _is_finite(cast):
            problem = "NaN or infinite values; the checkpoint is damaged"
            if not kept and _is_finite(array):
                problem = f"values too large for --dtype {dtype}; take another dtype, or keep the checkpoint's own"
            raise CheckpointError(f"tensor {tensor.name} in {tensor.file} holds {problem}")
        packed = pack(ours, cast, quantize)
        del array, cast  # frees their memory before the next one is read
        for name in list(packed):
            yield name, np.asarray(packed.pop(name))


def _is_finite(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    # In blocks, because the mask of a whole embedding would take a gigabyte.
    return all(np.isfinite(flat[start : start + _BLOCK]).all() for start in range(0, flat.size, _BLOCK))


def join_experts(tensors: Source, count: int, where: str) -> dict[str, Tensor]:
    """The tensors of a source, with those of a layer's `count` experts stacked to [experts, out, in]."""
    joined: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if one := _ONE_EXPERT.fullmatch(name):
            stacks.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = tensor
        else:
            joined[name] = tensor
    for name, stack in stacks.items():
        if wrong := sorted(stack.keys() ^ set(range(count))):
            problem = "is missing" if wrong[0] < count else f"is one too many for a config with {count} experts"
            raise CheckpointError(f"tensor {_of_expert(name, wrong[0])} {problem} in {where}; {parameters.INCOMPLETE}")
        joined[name] = _stacked(name, [stack[i] for i in range(count)])
    return joined


def split_experts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inverse of `join_experts`, for arrays."""
    one_by_one: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        each = enumerate(array) if _EXPERTS.fullmatch(name) else ()
        one_by_one |= {_of_expert(name, i): part for i, part in each} or {name: array}
    return one_by_one


def _of_expert(name: str, i: int) -> str:
    """`a.experts.w1.weight` → `a.experts.3.w1.weight`."""
    return name.replace(".experts.", f".experts.{i}.")


def _stacked(name: str, parts: list[Tensor]) -> Tensor:
    first = parts[0]
    for part in parts:
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                f"tensor {part.name} in {part.file} is {part.dtype} {list(part.shape)}, unlike that of the first expert"
            )
    files = ", ".join(sorted({part.file for part in parts}))
    read = lambda: np.stack([part.read() for part in parts])
    return Tensor(name, (len(parts), *first.shape), first.dtype, files, read)


def read_back(
    source: Path, names: Collection[str], config: CheckpointConfig | heads.HeadConfig
) -> dict[str, np.ndarray]:
    """Parameters in the source's dtype, or each in its own if conversion did not change them."""
    arrays = parameters.read_arrays(source / "params", names)
    if config.dtype == config.source_dtype:
        return arrays

    def as_before(array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            narrow = array.astype(config.source_dtype)
        # The source had it in float32 too if the source's main dtype cannot hold it.
        wide = config.dtype == "float32" and not np.array_equal(narrow.astype(np.float32), array)
        return array if wide else narrow

    return {name: as_before(array) for name, array in arrays.items()}


def write_tensors(file: Path, arrays: Mapping[str, np.ndarray], theirs: Callable[[str], str]) -> Collection[str]:
    """Writes parameters as safetensors, with PyTorch's names and layout. Returns these names."""
    from safetensors.numpy import save, save_file

    tensors = split_experts({theirs(name): np.ascontiguousarray(turned(name, array)) for name, array in arrays.items()})
    if in_bucket(file):
        file.write_bytes(save(tensors, metadata={"format": "pt"}))
        return tensors.keys()
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors makes it readable only for its owner
    return tensors.keys()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a config in Hugging Face's form."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
