"""The table of sharding rules: which axis of an array is sharded along which axes of the mesh."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxspec.model.mesh import AnyMesh

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


def spec(mesh: AnyMesh, axes: Sequence[str | None], shape: Sequence[int], rules: Rules = DECODING) -> PartitionSpec:
    """The partition of an array with this shape and these logical axes. None, and axes past the last: never sharded.

    An axis of the array is sharded along the first of its mesh axes, as far as they divide its length. Each mesh axis
    is used once: the first axis of the array that can use it does.
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


def sharding(mesh: AnyMesh, axes: Sequence[str | None], shape: Sequence[int], rules: Rules = DECODING) -> NamedSharding:
    """`spec` with its mesh."""
    return NamedSharding(mesh, spec(mesh, axes, shape, rules))


def constrain(x: Array, *axes: str | None) -> Array:
    """Shards an intermediate array by the table, so that the partitioner does not choose another sharding.

    The mesh is the current one of `jax.set_mesh`; without one x is returned as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else jax.lax.with_sharding_constraint(x, spec(mesh, axes, x.shape))


def cut_along(name: str, length: int) -> tuple[str, ...]:
    """Axes of the current mesh that shard an array's axis of this name and length; none without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = () if mesh.empty else spec(mesh, (name,), (length,))[0] or ()
    return (axes,) if isinstance(axes, str) else axes  # one may be alone


def cuts(name: str, length: int) -> int:
    """Number of parts that an axis of this name and length has on the current mesh."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in cut_along(name, length))


def on_each_device(function: Callable[..., T], *given: tuple[Any, Axes], out: tuple[Any, Axes]) -> T:
    """Runs a function on each device of the current mesh, on the device's parts of the arrays (`jax.shard_map`).

    Args:
        given: the function's arguments: pytrees of arrays, each with logical axes: names for all its arrays, or a
            function that maps an array's path in the pytree to names.
        out: a pytree of arrays with the shapes that the function returns, and its logical axes.
    """
    mesh, arguments = jax.sharding.get_abstract_mesh(), [tree for tree, _ in given]
    if mesh.empty:
        return function(*arguments)

    def places(tree: Any, axes: Axes) -> Any:
        def place(path: Any, leaf: Any) -> PartitionSpec:
            return spec(mesh, axes if isinstance(axes, tuple) else axes(path), leaf.shape)

        return jax.tree_util.tree_map_with_path(place, tree)

    inputs = tuple(places(tree, axes) for tree, axes in given)
    return jax.shard_map(function, in_specs=inputs, out_specs=places(*out), check_vma=False)(*arguments)
