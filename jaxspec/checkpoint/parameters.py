"""Parameters on disk (Orbax), as a nested dictionary of arrays that mirrors any `nnx.Module`.

`layers.0.attention.q.kernel` names one of them, here and in every error.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from flax import nnx
from flax.nnx.traversals import flatten_mapping, unflatten_mapping
from jax.sharding import Mesh

from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError, read_config
from jaxspec.host import processes
from jaxspec.host.buckets import described, in_bucket, to_path
from jaxspec.host.environment import default_device
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import check as check_quantization
from jaxspec.model.quantization import is_quantized, kind_of, pack, quantized
from jaxspec.model.sharding import move, place

GROUP_BYTES = 256 * 2**20
# Size of a chunk of a stored array. Only whole chunks are read, so small ones let a host read little beside its part.
CHUNK_BYTES = 4 * 2**20

INCOMPLETE = "the files are incomplete, or their config is another model's"
PARTS = "parts.json"  # of parameters in several Orbax checkpoints: the names in each, by its folder
_OF_A_BUCKET = re.compile(  # errors of gcsfs and TensorStore about access, not about the files
    "gcsfs|aiohttp|google|Forbidden|PERMISSION_DENIED|UNAUTHENTICATED|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED"
)

M = TypeVar("M", bound=nnx.Module)


@functools.lru_cache(maxsize=4)  # shared, so nobody may write into it
def abstract(config: LlamaConfig, quantize: str | None = None) -> Llama:
    """A Llama of `jax.ShapeDtypeStruct`s: every name and shape, no memory; its kernels quantised if wanted."""
    first = dataclasses.replace(config, num_layers=1)  # tracing 80 layers takes seconds, and copying one does not
    model = nnx.eval_shape(lambda: Llama(first, rngs=nnx.Rngs(0)))
    if quantize is not None:
        model = nnx.eval_shape(lambda model: quantized(model, quantize), model)
    model.config, model.layers = config, nnx.List([nnx.clone(model.layers[0]) for _ in range(config.num_layers)])
    return model


def restore(path: Path | str, dtype: Any = None, mesh: Mesh | None = None, quantize: str | None = None) -> Llama:
    """Loads the target of a checkpoint, with floats in `dtype`; None: in that of `config.json`.

    Other arguments as in `loading.load`, with a mesh that is split. Raises CheckpointError if a parameter is missing,
    unexpected or mis-shaped, or the checkpoint is quantised otherwise.
    """
    config = read_config(path)
    how = quantization(config, quantize, path)
    params, dtype = to_path(path) / "params", config.dtype if dtype is None else dtype
    placed = lambda module: module if mesh is None else place(module, mesh)
    module = placed(abstract(config.model, how))
    if how is None or how == config.quantize:
        return load_params(params, module, dtype)
    values = read_packed(params, placed(abstract(config.model)), dtype, how)
    return dict_to_module(module, values if mesh is None else move(values, module_to_dict(module)))


def quantization(config: CheckpointConfig, wanted: str | None, path: Path | str) -> str | None:
    """The quantisation of a checkpoint's target after loading. Raises CheckpointError if `wanted` is not possible."""
    if config.quantize is not None and wanted not in (None, config.quantize):
        raise CheckpointError(
            f"the checkpoint at {path} holds {config.quantize} weights, which cannot become {wanted}; convert it again"
        )
    how = config.quantize if wanted is None else wanted
    check_quantization(how)
    return how


def module_to_dict(module: nnx.Module) -> dict[str, Any]:
    """Dotted name → array (or ShapeDtypeStruct, of an abstract module) of every parameter."""
    values = flatten_mapping(nnx.to_pure_dict(nnx.state(module)))
    return dict(zip(names_of(values), values.values(), strict=True))


def names_of(paths: Collection[tuple[Any, ...]]) -> list[str]:
    """The dotted name on disk of each parameter. There an RMSNorm is one array, and an LM head is called `head`."""
    below = Counter(path[:end] for path in paths for end in range(len(path) + 1))

    def name(path: tuple[Any, ...]) -> str:
        is_taken = lambda i: (*path[:i], "head") in below
        names = ["head" if key == "lm_head" and not is_taken(i) else str(key) for i, key in enumerate(path)]
        # Not that of a LayerNorm or a quantised kernel, which has other parameters beside it, nor one of the root.
        is_norm = names[-1] == "scale" and below[path[:-1]] == 1 and len(names) > 1
        return ".".join(names[:-1] if is_norm else names)

    return list(map(name, paths))


def dict_to_module(module: M, values: Mapping[str, Any]) -> M:
    """The module with its parameters taken from `values`, dotted names. Raises CheckpointError if they differ."""
    check_names(module_to_dict(module), values, "the parameters")
    graph, state = nnx.split(module)
    params = dict(nnx.to_flat_state(state))
    filled = [(path, params[path].replace(values[name])) for path, name in zip(params, names_of(params), strict=True)]
    return nnx.merge(graph, nnx.from_flat_state(filled))


def check_names(expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    """Raises CheckpointError naming what is missing, unexpected or mis-shaped in `found`; values have a `.shape`."""
    for problem, names in (
        ("is missing", expected.keys() - found.keys()),
        ("is not part of this model", found.keys() - expected.keys()),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise CheckpointError(f"tensor {min(names, key=natural)}{more} {problem} in {where}; {INCOMPLETE}")
    for name in expected:
        if (want := tuple(expected[name].shape)) != (got := tuple(found[name].shape)):
            raise CheckpointError(f"tensor {name} in {where} has shape {list(got)}, and by the config {list(want)}")


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key by which layers.2 comes before layers.10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("."))


def write_params(path: Path | str, params: Iterable[tuple[str, Any]], group_bytes: int = GROUP_BYTES) -> None:
    """Collective: writes (dotted name, array) pairs as Orbax parameters, about `group_bytes` of them at a time.

    `path` must not exist; it appears when everything is written. Beside it Orbax keeps `NAME.partial_save` until then.
    In a bucket each group becomes an Orbax checkpoint in `path`, and PARTS, which names them, appears last.
    """
    folder = to_path(path).absolute()
    if in_bucket(folder):
        parts = write_parts(folder, params, group_bytes, "")
        if processes.is_first():
            write_index(folder, parts)
        return
    for group in _groups(params, group_bytes):
        with _writing(group):
            ocp.partial.save(str(folder), unflatten_mapping(group, sep="."))
        group.clear()
    ocp.partial.finalize(str(folder))


def _writing(group: Mapping[str, Any]) -> ocp.Context:
    context = ocp.Context()
    # Decompressing takes a CPU, where float32 is the default, longer than reading the larger file.
    context.array.saving.use_compression = any(array.dtype != np.float32 for array in group.values())
    # Saving blocks until the bytes are on disk, so Orbax needs no copy of its own to write from.
    context.memory.deepcopy_host_arrays = False
    context.array.saving.storage_options.chunk_byte_size = CHUNK_BYTES
    return context


def write_parts(folder: Path, params: Iterable[tuple[str, Any]], group_bytes: int, prefix: str) -> dict[str, list[str]]:
    """Collective: writes each group as a checkpoint, PREFIX00000 and so on; returns the names in each."""
    # Orbax joins groups by renaming folders, which buckets cannot do. `write_index` makes all parts one checkpoint.
    parts = dict[str, list[str]]()
    with access_described(folder):
        for group in _groups(params, group_bytes):
            parts[part := f"{prefix}{len(parts):05}"] = [*group]
            with _writing(group):
                ocp.save(str(folder / part), unflatten_mapping(group, sep="."))
            group.clear()
    return parts


@contextlib.contextmanager
def access_described(folder: Path) -> Iterator[None]:
    """Turns errors of TensorStore and gcsfs about access to the bucket of a folder, if it is in one, into OSError."""
    try:
        yield
    except (CheckpointError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        numbered = isinstance(error, OSError) and error.errno is not None  # gcsfs's have none where access is denied
        if numbered or not in_bucket(folder) or not _OF_A_BUCKET.search(f"{type(error)} {error}"):
            raise
        raise described(error, folder) from error


def write_index(folder: Path, parts: Mapping[str, Sequence[str]]) -> None:
    """Names the parts of the parameters in a bucket; written last, for it marks them as complete."""
    (folder / PARTS).write_text(json.dumps(parts), encoding="utf-8")


def _parts(path: Path | str) -> dict[str, list[str] | None]:
    """The names of the parameters in each Orbax checkpoint, by its path. None: all names."""
    folder = to_path(path).absolute()
    try:
        parts = json.loads((folder / PARTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {str(folder): None}
    return {str(folder / part): names for part, names in parts.items()}


@contextlib.contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    """Turns whatever goes wrong while parameters are read into a CheckpointError."""
    logging.getLogger("asyncio").addFilter(_not_left_by_orbax)
    try:
        yield
    except Exception as error:  # Orbax and TensorStore raise many types, none of them documented
        reason = "they are incomplete or damaged; convert or copy the checkpoint again"
        if isinstance(error, OSError) and isinstance(error.strerror, str):  # errors of pybind11 have a method there
            reason = error.strerror
        elif isinstance(error, MemoryError | jax.errors.JaxRuntimeError):
            reason = " ".join(str(error).split())[:300]
        if in_bucket(path) and _OF_A_BUCKET.search(f"{type(error)} {error}"):
            reason = described(error, path).strerror
        raise CheckpointError(f"the parameters at {path} cannot be read: {reason}") from error


def _not_left_by_orbax(record: logging.LogRecord) -> bool:
    """False for records of Orbax's failed background tasks: one for each parameter, each with a traceback."""
    return "tensorstore_spec" not in record.getMessage()


def read_shapes(path: Path | str, module: nnx.Module | None = None) -> dict[str, Any]:
    """Metadata with `.shape` and `.dtype` by dotted name. Raises CheckpointError if it is not that of `module`."""
    with _reading(path):
        stored = {
            name: meta
            for part in _parts(path)
            for name, meta in flatten_mapping(ocp.metadata(part).metadata, sep=".").items()
        }
    if module is not None:
        check_names(module_to_dict(module), stored, str(path))
    return stored


def read_arrays(path: Path | str, names: Collection[str]) -> dict[str, np.ndarray]:
    """Some of the parameters that `write_params` wrote, as they are on disk, whatever devices wrote them."""
    stored = read_shapes(path).items()
    wanted = {name: _wanted(name, meta, None, None) if name in names else ocp.PLACEHOLDER for name, meta in stored}
    return {name: np.asarray(array) for name, array in _load(path, wanted).items() if name in names}


def load_params(path: Path | str, module: M, dtype: Any = None) -> M:
    """Fills an abstract module from Orbax parameters, cast to `dtype` tensor by tensor; None keeps each one's own.

    Each goes to the sharding of its `jax.ShapeDtypeStruct`, if any, of which a process reads its own part.
    """
    stored, places = read_shapes(path, module), module_to_dict(module)
    wanted = {name: _wanted(name, meta, dtype, places[name].sharding) for name, meta in stored.items()}
    return dict_to_module(module, _load(path, wanted))


def read_packed(path: Path | str, module: nnx.Module, dtype: Any, how: str) -> dict[str, Any]:
    """The parameters of an abstract module, quantised in groups as they are read, so few are in memory as floats."""
    stored, places = read_shapes(path, module), module_to_dict(module)
    wanted = (
        (name, _wanted(name, meta, None if kind_of(name, how) else dtype, places[name].sharding))
        for name, meta in stored.items()
    )
    found: dict[str, Any] = {}
    for group in _groups(wanted, GROUP_BYTES):
        arrays = _load(path, {name: group.get(name, ocp.PLACEHOLDER) for name in stored})
        for name in group:
            found |= pack(name, arrays.pop(name), how)
    return found


def _wanted(name: str, meta: Any, dtype: Any, place: Any) -> jax.ShapeDtypeStruct:
    # Integers and their scales keep their dtype.
    kept = dtype is None or is_quantized(name)
    where = place or jax.sharding.SingleDeviceSharding(default_device())
    return jax.ShapeDtypeStruct(meta.shape, jnp.dtype(meta.dtype if kept else dtype), sharding=where)


def _load(path: Path | str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Reads arrays with the shapes, dtypes and shardings of `_wanted`; those that are `PLACEHOLDER` are not read."""
    context = ocp.Context()
    # Bounds the tensors that exist twice, as read and as cast; the largest one must fit, with a byte to spare.
    largest = max((math.prod(leaf.shape) * 4 for leaf in wanted.values() if leaf is not ocp.PLACEHOLDER), default=0)
    context.memory.read_concurrent_bytes = max(largest, GROUP_BYTES) + 1
    found = dict[str, Any]()
    with _reading(path), context:
        for part, names in _parts(path).items():
            here = wanted if names is None else {name: wanted[name] for name in names}
            if any(leaf is not ocp.PLACEHOLDER for leaf in here.values()):
                found |= flatten_mapping(ocp.load(part, unflatten_mapping(here, sep=".")), sep=".")
    return found


def _groups(params: Iterable[tuple[str, Any]], group_bytes: int) -> Iterator[dict[str, Any]]:
    """Collects pairs, of arrays or what stands for them, until they weigh `group_bytes`."""
    group: dict[str, Any] = {}
    for name, array in params:
        group[name] = array
        del array  # the caller clears the group after use; nothing else may keep the tensor alive
        if sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in group.values()) >= group_bytes:
            yield group
            group = {}
    if group:
        yield group
