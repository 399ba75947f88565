"""The sharding of each parameter on the mesh.

It is stored in a `jax.ShapeDtypeStruct`. So an abstract model can be restored from disk (`parameters.load_params`), or
compiled for, without ever holding the arrays.
"""

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from jaxspec.host.processes import put
from jaxspec.model.mesh import AnyMesh
from jaxspec.model.mesh_rules import DECODING, REPLICATED, Rules, sharding
from jaxspec.model.quantization import leaf_bytes

M = TypeVar("M", bound=nnx.Module)
T = TypeVar("T")
REPLICATED_BELOW = 32 * 2**20
"""Bytes of a head under which every device keeps all of it. Cutting it saves reading most of them and costs a layer two
all-reduces, some 10 µs each on ICI and NVLink; in 20 µs a v5e reads 16 MB (819 GB/s), an H100 67 MB (3350 GB/s). That
is arithmetic: it was not measured."""


def place(module: M, mesh: AnyMesh, rules: Rules = DECODING, dtype: Any = None) -> M:
    """The module with `jax.ShapeDtypeStruct`s for parameters, whose shardings are those of their `axes`.

    Args:
        module: of arrays, or abstract (`checkpoint.abstract`, `nnx.eval_shape`).
        mesh: as `split` gives it.
        dtype: that the parameters will have, if not the one that they have.
    """

    def one(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["axes"]
        at = lambda leaf: placed_leaf(leaf, mesh, axes, rules, dtype)
        return variable.replace(jax.tree.map(at, variable.get_value()))

    graph, state = nnx.split(module)
    return nnx.merge(graph, nnx.from_flat_state([(keys, one(old)) for keys, old in nnx.to_flat_state(state)]))


def place_head(head: T, mesh: AnyMesh, dtype: Any = None) -> T:
    """The same for what a drafter or controller brought: cut by the table, or whole on every device if it is small."""
    if not isinstance(head, nnx.Module):
        return jax.tree.map(lambda leaf: placed_leaf(leaf, mesh, ()), head)
    whole = place(head, mesh, REPLICATED, dtype)
    return whole if device_bytes(whole) < REPLICATED_BELOW else place(head, mesh, DECODING, dtype)


def move(arrays: T, placed: T) -> T:
    """The arrays, each put where its counterpart in `placed` says."""
    return jax.tree.map(lambda leaf, at: put(leaf, at.sharding), arrays, placed)


def spread(arrays: T) -> T:
    """What is not on the current mesh yet, copied to each of its devices; nothing is done without a mesh."""
    mesh = jax.sharding.get_mesh()
    on = lambda leaf: isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
    whole = lambda leaf: leaf if on(leaf) else put(leaf, sharding(mesh, (), leaf.shape))
    return arrays if mesh.empty else jax.tree.map(whole, arrays)


def put_rows(batch: T) -> T:
    """A batch of rows, cut along `data` of the current mesh; left on the host without one."""
    mesh = jax.sharding.get_mesh()
    cut = lambda leaf: put(leaf, sharding(mesh, ("batch",), leaf.shape))
    return batch if mesh.empty else jax.tree.map(cut, batch)


def placed_leaf(
    leaf: Any, mesh: AnyMesh, axes: tuple[str | None, ...], rules: Rules = DECODING, dtype: Any = None
) -> jax.ShapeDtypeStruct:
    """An array, real or abstract, as a `jax.ShapeDtypeStruct` in its place by the rules for its axes."""
    return jax.ShapeDtypeStruct(leaf.shape, _wanted(leaf, dtype), sharding=sharding(mesh, axes, leaf.shape, rules))


def device_bytes(placed: Any) -> int:
    """Bytes that each device holds of something placed."""
    return sum(leaf_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(placed))


def _wanted(leaf: Any, dtype: Any) -> Any:
    """The dtype asked for, of floats; quantised values keep theirs."""
    return dtype if dtype is not None and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype


def device_elements(placed: Any) -> int:
    """Numbers that each device holds of what was placed."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(placed))
