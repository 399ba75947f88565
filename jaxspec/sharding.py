"""What lies where: parameters, heads and the state of decoding, each array with its place on the mesh.

A place is written into a `jax.ShapeDtypeStruct`, as its sharding: so that what is abstract here can be restored from
disk (`checkpoint.load_params`), made by a jitted function (`make`), or compiled for, without an array having been.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx

from jaxspec.cache import AXES as KV_AXES
from jaxspec.cache import KV
from jaxspec.checkpoint import leaf_bytes
from jaxspec.decode import DecodeState
from jaxspec.mesh import DECODING, AnyMesh, Rules, model_size, sharding

M = TypeVar("M", bound=nnx.Module)
T = TypeVar("T")

REPLICATED_BELOW = 32 * 2**20
"""Bytes of a head under which every device keeps all of it. Cutting it saves reading most of them, and costs a layer two
all-reduces, some 10 µs each on ICI and NVLink; in 20 µs a v5e reads 16 MB (819 GB/s), an H100 67 MB (3350 GB/s). So says
arithmetic; nobody has measured it."""


def place(module: M, mesh: AnyMesh, rules: Rules = DECODING) -> M:
    """The module with `jax.ShapeDtypeStruct`s for parameters, whose shardings are those of their `axes`.

    Args:
        module: of arrays, or abstract (`checkpoint.abstract`, `nnx.eval_shape`).
        mesh: as `split` gives it.
    """

    def one(variable: nnx.Variable) -> nnx.Variable:
        axes = variable.get_metadata()["axes"]
        at = lambda leaf: _at(leaf, mesh, axes, rules)
        return variable.replace(jax.tree.map(at, variable.get_value()))

    graph, state = nnx.split(module)
    return nnx.merge(graph, nnx.from_flat_state([(keys, one(old)) for keys, old in nnx.to_flat_state(state)]))


def place_head(head: T, mesh: AnyMesh, dtype: Any = None) -> T:
    """The same for what a drafter or controller brought: cut by the table, or whole on every device where it is small.

    Args:
        dtype: that it will have, if not the one that it has.
    """
    if not isinstance(head, nnx.Module):
        return jax.tree.map(lambda leaf: _at(leaf, mesh, ()), head)
    size = sum(leaf.size * jax.numpy.dtype(dtype or leaf.dtype).itemsize for leaf in jax.tree.leaves(head))
    whole = model_size(mesh) == 1 or size < REPLICATED_BELOW
    return place(head, mesh, dict.fromkeys(DECODING, ()) if whole else DECODING)


def place_state(state: DecodeState, mesh: AnyMesh) -> DecodeState:
    """The state, of arrays or abstract, as `jax.ShapeDtypeStruct`s: rows along `data`, KV heads along `kv`."""
    of_kv = lambda layer: KV(k=_at(layer.k, mesh, KV_AXES), v=_at(layer.v, mesh, KV_AXES))
    at = lambda leaf: of_kv(leaf) if isinstance(leaf, KV) else _at(leaf, mesh, ("batch",))
    placed = jax.tree.map(at, state, is_leaf=lambda leaf: isinstance(leaf, KV))
    return dataclasses.replace(placed, eos=_at(state.eos, mesh, ()))  # the one array that is not of rows


def shardings(placed: Any) -> Any:
    """The shardings alone, as `jax.jit` and `jax.device_put` take them."""
    return jax.tree.map(lambda leaf: leaf.sharding, placed)


def device_bytes(placed: Any) -> int:
    """Bytes that each device holds of something placed."""
    return sum(leaf_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(placed))


def make(build: Callable[..., T], placing: Callable[[T], T], *arguments: Any) -> T:
    """What `build` makes of the arguments, each array made right where `placing` puts it."""
    placed = placing(jax.eval_shape(build, *arguments))
    return jax.jit(build, out_shardings=shardings(placed))(*arguments)


def _at(leaf: Any, mesh: AnyMesh, axes: tuple[str | None, ...], rules: Rules = DECODING) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding(mesh, axes, leaf.shape, rules))
