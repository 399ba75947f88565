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
"""A head with fewer bytes is replicated on every device. Sharding it would save most of its reads, but cost two
all-reduces a layer, about 10 µs each on ICI and NVLink. In 20 µs a v5e reads 16 MB (819 GB/s), an H100 67 MB
(3350 GB/s). This is arithmetic, not a measurement."""


def place(module: M, mesh: AnyMesh, rules: Rules = DECODING, dtype: Any = None) -> M:
    """The module with a `jax.ShapeDtypeStruct` for each parameter, sharded by the rules for its `axes`.

    Args:
        module: with arrays, or abstract (`checkpoint.abstract`, `nnx.eval_shape`).
        mesh: from `split`.
        dtype: the new dtype of floating-point parameters; None: they keep theirs.
    """

    def one(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["axes"]
        at = lambda leaf: placed_leaf(leaf, mesh, axes, rules, dtype)
        return variable.replace(jax.tree.map(at, variable.get_value()))

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


def spread(arrays: T) -> T:
    """Replicates arrays on the current mesh if they are not on it yet. Without a mesh nothing changes."""
    mesh = jax.sharding.get_mesh()
    on = lambda leaf: isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
    whole = lambda leaf: leaf if on(leaf) else put(leaf, sharding(mesh, (), leaf.shape))
    return arrays if mesh.empty else jax.tree.map(whole, arrays)


def put_rows(batch: T) -> T:
    """A batch of rows, sharded along `data` of the current mesh; without a mesh it stays on the host."""
    mesh = jax.sharding.get_mesh()
    cut = lambda leaf: put(leaf, sharding(mesh, ("batch",), leaf.shape))
    return batch if mesh.empty else jax.tree.map(cut, batch)


def placed_leaf(
    leaf: Any, mesh: AnyMesh, axes: tuple[str | None, ...], rules: Rules = DECODING, dtype: Any = None
) -> jax.ShapeDtypeStruct:
    """A `jax.ShapeDtypeStruct` for a real or abstract array, sharded by the rules for its axes."""
    return jax.ShapeDtypeStruct(leaf.shape, _wanted(leaf, dtype), sharding=sharding(mesh, axes, leaf.shape, rules))


def device_bytes(placed: Any) -> int:
    """Bytes of a placed pytree on each device."""
    return sum(leaf_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(placed))


def _wanted(leaf: Any, dtype: Any) -> Any:
    """`dtype` for floating-point arrays; integers of quantised weights keep theirs."""
    return dtype if dtype is not None and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype


def device_elements(placed: Any) -> int:
    """Elements of a placed pytree on each device."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(placed))
