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
DECODING: Rules = {
    "batch": ("data",),
    "vocab": ("kv", "group", "spare"),
    "mlp": ("kv", "group", "spare"),
    "heads": ("kv", "group"),
    "kv_heads": ("kv",),
    "query_group": ("group",),  # query heads that share a KV head
    "expert": (),  # experts are not distributed; each is sharded inside, as an MLP is
    "embed": (),
    "input": ("kv", "group", "spare"),  # inputs of a head's square matrices: an all-reduce costs less than reading all
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


def cuts(name: str, length: int) -> int:
    """Number of parts that an axis of this name and length has on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    axes = spec(mesh, (name,), (length,))[0] or ()
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))  # one may be alone


def on_each_device(
    function: Callable[..., T], *given: tuple[Any, Sequence[str | None]], out: Sequence[str | None]
) -> T:
    """Runs a function on each device of the current mesh, on the device's parts of the arrays (`jax.shard_map`).

    Args:
        given: the function's arguments: pytrees of arrays, each with the logical axes that all its arrays have.
        out: logical axes of every array that the function returns.
    """
    mesh, arguments = jax.sharding.get_abstract_mesh(), [tree for tree, _ in given]
    if mesh.empty:
        return function(*arguments)

    def places(tree: Any, axes: Sequence[str | None]) -> Any:
        return jax.tree.map(lambda leaf: spec(mesh, axes, leaf.shape), tree)

    inputs = tuple(places(tree, axes) for tree, axes in given)
    outputs = places(jax.eval_shape(function, *arguments), out)
    return jax.shard_map(function, in_specs=inputs, out_specs=outputs, check_vma=False)(*arguments)
