"""Sharding: the mesh of devices, the table of rules for its axes, and the placement of parameters.

Users give up to three numbers: `data` shards the batch, `model` the weights (tensor parallelism as in Megatron,
arXiv:1909.08053), `rows` the weights too, and the rows of the KV cache (`split_rows.py`). Attention can be sharded at
most by its heads. So `split_mesh` divides the axis `model` into three, for the heads of a given model: devices along
`kv` have different KV heads; devices along `group` share KV heads and have different query heads; devices along `spare`
share query heads too. Vocabulary and MLP are sharded along all three, and along `rows`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxspec.host.processes import put
from jaxspec.model import backend
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import leaf_bytes

AXES = ("data", "kv", "group", "spare", "rows")
"""Axes of a model's mesh after `split_mesh`; `kv` x `group` x `spare` are the users' axis `model`."""
MOST_ROWS = 8  # every bucket of cache rows is a multiple of it

AnyMesh = Mesh | AbstractMesh  # an AbstractMesh has no devices

M = TypeVar("M", bound=nnx.Module)
T = TypeVar("T")
Rules = Mapping[str, tuple[str, ...]]
Axes = tuple[str | None, ...] | Callable[[Any], tuple[str | None, ...]]
DECODING: Rules = {
    "batch": ("data",),
    "vocab": ("kv", "group", "spare", "rows"),
    "mlp": ("kv", "group", "spare", "rows"),
    "heads": ("kv", "group", "rows"),
    "kv_heads": ("kv",),
    "query_group": ("group", "rows"),  # query heads that share a KV head
    "cache_rows": ("rows",),
    "expert": (),  # experts are not distributed; each is sharded inside, as an MLP is
    "embed": (),
    # Inputs of a head's square matrices: an all-reduce costs less than reading all of them.
    "input": ("kv", "group", "spare", "rows"),
    "level": (),  # of the calibrator: depth in the tree, and its two classes
    "label": (),
}
"""Logical axis of an array, as in `nnx.Param(..., axes=...)` → axes of the mesh that shard it."""

REPLICATED: Rules = dict.fromkeys(DECODING, ())
"""Nothing is sharded."""

TRAINING: Rules = {**DECODING, "embed": ("data",)}
"""`DECODING` with every weight also sharded along `data`, and gathered where it is used (FSDP, arXiv:2304.11277)."""

REPLICATED_BELOW = 32 * 2**20
"""A head with fewer bytes is replicated. Sharding it would cost two all-reduces a layer, about 10 µs each on ICI and
NVLink. In 20 µs a v5e reads 16 MB (819 GB/s), an H100 67 MB (3350 GB/s). This is arithmetic, not a measurement."""


def make_mesh(*, data: int = 1, model: int = 1, rows: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over `devices` (None: the first of `jax.devices()`). Several processes must use all devices.

    Raises ValueError if an axis is below 1, `rows` is not 1, 2, 4 or 8, or there are too few devices.
    """
    sizes = {"data": data, "model": model, "rows": rows}
    _check_sizes(sizes)
    shape = ",".join(f"{name}={size}" for name, size in sizes.items() if name != "rows" or size != 1)
    available, needed, several = devices or jax.devices(), math.prod(sizes.values()), jax.process_count() > 1
    if needed > len(available) or (several and needed < len(available)):
        raise ValueError(
            f"a mesh of {shape} needs {needed} devices but there are {len(available)}; "
            f"choose numbers whose product is {'' if several else 'at most '}{len(available)}"
        )
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * 3, devices=available)


def parse_mesh(text: str) -> Mesh:
    """The mesh of `data=2,model=4`; an axis that is not given has one device. Raises ValueError."""
    sizes = read_sizes(text)
    return make_mesh(data=sizes["data"], model=sizes["model"], rows=sizes.get("rows", 1))


def read_sizes(text: str) -> dict[str, int]:
    """Sizes of the axes from `data=2,model=4`, and of `rows` if it is given. Raises ValueError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in ("data", "model", "rows") or name in sizes or not size.isdecimal():
            raise ValueError(f"--mesh {text!r}: write data=N,model=M or data=N,model=M,rows=R, with whole numbers")
        sizes[name] = int(size)
    _check_sizes(sizes)
    return {"data": 1, "model": 1, **sizes}


def _check_sizes(sizes: Mapping[str, int]) -> None:
    """Raises ValueError if an axis has no device, or the rows of the cache cannot be split so."""
    if min(sizes.values()) < 1:
        raise ValueError(f"a mesh needs at least one device along each axis, not {min(sizes.values())}")
    if MOST_ROWS % (rows := sizes.get("rows", 1)):
        raise ValueError(f"rows of the cache can be split over 2, 4 or {MOST_ROWS} devices, not {rows}")


def split_mesh(mesh: Mesh, config: LlamaConfig) -> Mesh:
    """The same devices with the axis `model` split by the heads of a model, into `AXES`."""
    if not {"data", "model"} <= {*mesh.shape}:
        raise ValueError(f"the mesh has the axes {', '.join(mesh.shape)}: make one with jaxspec.make_mesh")
    sizes = (mesh.shape["data"], *model_axis_sizes(mesh.shape["model"], config), mesh.shape.get("rows", 1))
    return Mesh(np.asarray(mesh.devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def model_axis_sizes(model: int, config: LlamaConfig) -> tuple[int, int, int]:
    """Sizes of `kv`, `group` and `spare` that an axis `model` of this size is split into."""
    kv = math.gcd(model, config.num_kv_heads)
    group = math.gcd(model // kv, config.num_heads // config.num_kv_heads)
    return kv, group, model // (kv * group)


def model_size(mesh: AnyMesh) -> int:
    """Devices that a split mesh shards the weights over."""
    return math.prod(mesh.shape[name] for name in AXES[1:])


def shared_heads(mesh: AnyMesh, config: LlamaConfig) -> str | None:
    """A sentence for users if devices of a split mesh replicate KV heads; None if each has heads of its own."""
    copies = mesh.shape["group"] * mesh.shape["spare"]
    if copies == 1:
        return None
    over = f"{config.num_kv_heads} KV heads over {model_size(mesh)} devices"
    text = f"{over}: each KV head is replicated on {copies} of them"
    if mesh.shape["spare"] > 1:
        text += f", and each query head is computed by {mesh.shape['spare']}"
    if MOST_ROWS % (rows := copies * mesh.shape["rows"]) == 0:
        text += f"; --mesh model={mesh.shape['kv']},rows={rows} would split the rows of the cache between these instead"
    return text


def partition_spec(
    mesh: AnyMesh, axes: Sequence[str | None], shape: Sequence[int], rules: Rules = DECODING
) -> PartitionSpec:
    """The partition of an array with this shape and these logical axes. None, and axes past the last: never sharded.

    An axis is sharded along its mesh axes, in order, while they divide its length. Each mesh axis is used once.
    """
    used: set[str] = set()
    cuts: list[tuple[str, ...] | None] = []
    for name, length in zip(axes, shape, strict=False):
        taken: list[str] = []
        for axis in () if name is None else rules[name]:
            if axis in used or length % math.prod(mesh.shape[a] for a in (*taken, axis)):
                break
            taken.append(axis)
        used.update(taken)
        cuts.append(tuple(taken) or None)
    return PartitionSpec(*cuts)


def named_sharding(
    mesh: AnyMesh, axes: Sequence[str | None], shape: Sequence[int], rules: Rules = DECODING
) -> NamedSharding:
    """`partition_spec` with its mesh."""
    return NamedSharding(mesh, partition_spec(mesh, axes, shape, rules))


def constrain(x: Array, *axes: str | None) -> Array:
    """Shards an intermediate array on the current mesh by `DECODING`. Without a mesh, x is returned as it is."""
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else jax.lax.with_sharding_constraint(x, partition_spec(mesh, axes, x.shape))


def sharded_axes(name: str, length: int) -> tuple[str, ...]:
    """Axes of the current mesh that shard an array's axis of this name and length; none without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = () if mesh.empty else partition_spec(mesh, (name,), (length,))[0] or ()
    return (axes,) if isinstance(axes, str) else axes  # one may be alone


def num_shards(name: str, length: int) -> int:
    """Number of parts that an axis of this name and length has on the current mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in sharded_axes(name, length))


def on_each_device(function: Callable[..., T], *inputs: tuple[Any, Axes], out: tuple[Any, Axes]) -> T:
    """Runs a function on each device of the current mesh, on the device's parts of the arrays (`jax.shard_map`).

    Args:
        inputs: the function's arguments: pytrees of arrays, each with logical axes for all its arrays, or a function
            from an array's path in the pytree to its axes.
        out: a pytree of arrays with the shapes that the function returns, and its logical axes.
    """
    mesh, arguments = jax.sharding.get_abstract_mesh(), [tree for tree, _ in inputs]
    if mesh.empty:
        return function(*arguments)

    def places(tree: Any, axes: Axes) -> Any:
        def place(path: Any, leaf: Any) -> PartitionSpec:
            return partition_spec(mesh, axes if isinstance(axes, tuple) else axes(path), leaf.shape)

        return jax.tree_util.tree_map_with_path(place, tree)

    specs = tuple(places(tree, axes) for tree, axes in inputs)
    return jax.shard_map(function, in_specs=specs, out_specs=places(*out), check_vma=False)(*arguments)


def place(module: M, mesh: AnyMesh, rules: Rules = DECODING, dtype: Any = None) -> M:
    """The module with a `jax.ShapeDtypeStruct` for each parameter, sharded by the rules for its `axes`.

    Parameters without `axes`, such as those of Flax's own layers, are replicated. The mesh is one of `split_mesh`.
    `dtype` is the new dtype of floating-point parameters; None: they keep theirs.
    """

    def one(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata().get("axes", ())
        return jax.tree.map(lambda leaf: placed_leaf(leaf, mesh, axes, rules, dtype), variable)

    graph, state = nnx.split(module)
    return nnx.merge(graph, nnx.from_flat_state([(keys, one(old)) for keys, old in nnx.to_flat_state(state)]))


def place_head(head: T, mesh: AnyMesh, dtype: Any = None) -> T:
    """`place` for the weights of a drafter or controller: replicated if small, otherwise sharded by `DECODING`."""
    if not isinstance(head, nnx.Module):
        return jax.tree.map(lambda leaf: placed_leaf(leaf, mesh, ()), head)
    whole = place(head, mesh, REPLICATED, dtype)
    return whole if device_bytes(whole) < REPLICATED_BELOW else place(head, mesh, DECODING, dtype)


def move(arrays: T, placed: T) -> T:
    """The arrays, each with the sharding of its counterpart in `placed`."""
    return jax.tree.map(lambda leaf, at: put(leaf, at.sharding), arrays, placed)


def replicate(arrays: T) -> T:
    """Replicates arrays on the current mesh if they are not on it yet. Without a mesh nothing changes."""
    mesh = backend.current_mesh()
    if mesh is None:
        return arrays
    on = lambda leaf: isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
    whole = lambda leaf: leaf if on(leaf) else put(leaf, named_sharding(mesh, (), leaf.shape))
    return jax.tree.map(whole, arrays)


def shard_batch(batch: T) -> T:
    """A batch of rows, sharded along `data` of the current mesh; without a mesh it stays on the host."""
    mesh = backend.current_mesh()
    if mesh is None:
        return batch
    return jax.tree.map(lambda leaf: put(leaf, named_sharding(mesh, ("batch",), leaf.shape)), batch)


def placed_leaf(
    leaf: Any, mesh: AnyMesh, axes: tuple[str | None, ...], rules: Rules = DECODING, dtype: Any = None
) -> jax.ShapeDtypeStruct:
    """A `jax.ShapeDtypeStruct` for a real or abstract array; `dtype` is for floating-point arrays only."""
    wanted = leaf.dtype if dtype is None or not jnp.issubdtype(leaf.dtype, jnp.floating) else dtype
    return jax.ShapeDtypeStruct(leaf.shape, wanted, sharding=named_sharding(mesh, axes, leaf.shape, rules))


def device_bytes(placed: Any) -> int:
    """Bytes of a placed pytree on each device."""
    return sum(leaf_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(placed))


def device_elements(placed: Any) -> int:
    """Elements of a placed pytree on each device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(placed))
