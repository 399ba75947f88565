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
    "expert": (),  # of a mixture: each is cut inside, as an MLP is
    "embed": (),
    "input": ("kv", "group", "spare"),  # of a head's square matrices: a sum over chips is less than reading them whole
    "level": (),  # of the calibrator: depth in the tree, and its two classes
    "label": (),
}
"""Logical axis of an array, as `nnx.Param(..., axes=...)` names it → axes of the mesh that it is cut along."""


REPLICATED: Rules = dict.fromkeys(DECODING, ())
"""Nothing is cut."""


TRAINING: Rules = {**DECODING, "embed": ("data",)}
"""The same with every weight cut along the batch's axis too, and gathered where it is used (FSDP, arXiv:2304.11277)."""


def spec(mesh: AnyMesh, axes: Sequence[str | None], shape: Sequence[int], rules: Rules = DECODING) -> PartitionSpec:
    """How an array with these logical axes (None: never cut) and this shape is cut; axes past the last are whole.

    A length that the mesh does not divide is cut along as many of the axes as divide it. No axis of the mesh is used
    twice: the first of the array's axes that may have it takes it.
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
    """`spec` on the mesh that it is for."""
    return NamedSharding(mesh, spec(mesh, axes, shape, rules))


def constrain(x: Array, *axes: str | None) -> Array:
    """Holds an intermediate array to the table, where the partitioner might choose otherwise; nothing without a mesh.

    The mesh is the one that `jax.set_mesh` has made current.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return x if mesh.empty else jax.lax.with_sharding_constraint(x, spec(mesh, axes, x.shape))


def cuts(name: str, length: int) -> int:
    """Parts that an axis of this name and length is cut into on the current mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    axes = spec(mesh, (name,), (length,))[0] or ()
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))  # one stands alone


def on_each_device(
    function: Callable[..., T], *given: tuple[Any, Sequence[str | None]], out: Sequence[str | None]
) -> T:
    """What a function makes of some arrays, run by each device of the current mesh on its own parts of them.

    Args:
        given: the function's arguments, pytrees of arrays, each with the logical axes of all its arrays.
        out: logical axes of every array that it returns.
    """
    mesh, arguments = jax.sharding.get_abstract_mesh(), [tree for tree, _ in given]
    if mesh.empty:
        return function(*arguments)

    def places(tree: Any, axes: Sequence[str | None]) -> Any:
        return jax.tree.map(lambda leaf: spec(mesh, axes, leaf.shape), tree)

    inputs = tuple(places(tree, axes) for tree, axes in given)
    outputs = places(jax.eval_shape(function, *arguments), out)
    return jax.shard_map(function, in_specs=inputs, out_specs=outputs, check_vma=False)(*arguments)
