"""The KV cache: one pair of arrays per layer. Committed tokens are in rows 0 and up; later rows have no meaning.

Keys and values of drafted nodes are stored separately (a `KV` of N rows) until verification. Then only the accepted
path is written to the cache. So the branches of the loop read the cache and never return it, which would copy it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import core
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from jaxspec.model import backend, split_rows
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import constrain, on_each_device


@chex.dataclass(frozen=True)
class KV:
    """Keys and values of one layer, S rows. Keys are transposed, so that the score product needs no copy of them."""

    k: Float[Array, "B K H S"]
    v: Float[Array, "B K S H"]

    def rows(self, start: int, end: int) -> "KV":
        """Rows `start` to `end` - 1."""
        return KV(k=self.k[..., start:end], v=self.v[:, :, start:end])


def axes(path: tuple[Any, ...]) -> tuple[str | None, ...]:
    """Logical axes of an array of the cache; `path` ends with its name, `k` or `v`."""
    rows = {"k": (None, "cache_rows"), "v": ("cache_rows", None)}
    return ("batch", "kv_heads", *rows[path[-1].name])


NODE_AXES = ("batch", "kv_heads", None, None)
"""Logical axes of keys and of values of nodes."""


def allocate(
    config: LlamaConfig, batch: int, cache_len: int, dtype: jnp.dtype, num_layers: int | None = None
) -> tuple[KV, ...]:
    """Zeroed keys and values of `cache_len` positions, for `num_layers` layers (None: all) with weights of `dtype`."""
    dtype = backend.cache_dtype(dtype)
    heads, dim = config.num_kv_heads, config.head_dim
    k, v = (batch, heads, dim, cache_len), (batch, heads, cache_len, dim)
    count = config.num_layers if num_layers is None else num_layers
    return tuple(KV(k=jnp.zeros(k, dtype), v=jnp.zeros(v, dtype)) for _ in range(count))


def write_nodes(nodes: KV, new: KV, slots: Int[Array, "B W"]) -> KV:
    """Writes the W rows of `new` to `slots` of `nodes` (N rows). Rows with a slot outside of 0 to N - 1 are dropped."""
    if slots.shape[1] == 1:  # a select is cheaper than a scatter, which XLA turns into a loop on a CPU
        is_slot = slots[:, :, None, None] == jnp.arange(capacity((nodes,)))
        return KV(
            k=jnp.where(is_slot, new.k.astype(nodes.k.dtype), nodes.k),
            v=jnp.where(is_slot.mT, new.v.astype(nodes.v.dtype), nodes.v),
        )
    put_k = jax.vmap(lambda old, rows, at: old.at[:, :, at].set(rows.astype(old.dtype), mode="drop"))
    put_v = jax.vmap(lambda old, rows, at: old.at[:, at].set(rows.astype(old.dtype), mode="drop"))
    return KV(k=put_k(nodes.k, new.k, slots), v=put_v(nodes.v, new.v, slots))


def gather_path(nodes: KV, path: Int[Array, "B P"]) -> KV:
    """The P rows of the accepted path, taken from the N rows of `nodes`."""
    return KV(
        k=jnp.take_along_axis(nodes.k, path[:, None, None, :], axis=3, mode="promise_in_bounds"),
        v=jnp.take_along_axis(nodes.v, path[:, None, :, None], axis=2, mode="promise_in_bounds"),
    )


def append(
    cache: tuple[KV, ...], rows: tuple[KV, ...], start: Int[Array, " B"], after: Int[Array, " B"] | None = None
) -> tuple[KV, ...]:
    """Writes the P rows of `rows` at `start`, `start` + 1, … of each sequence, in every layer.

    Rows past the accepted ones are written too; the next round overwrites them. Requires start + P <= S, otherwise XLA
    would shift the block over committed rows. Only finished sequences may have less room: they are never read again.

    Args:
        after: non-negative numbers computed from the values that this round read from the cache. They make the write
            depend on the reads, and change nothing else. Without this dependence XLA copies the cache.
    """
    if after is not None:
        start = start + jnp.minimum(after, 0)
    by_rows = backend.loops_over_updates()
    write = partial(_append_with, _write_by_rows if by_rows else _write_together)
    if by_rows or split_rows.parts() > 1:
        return on_each_device(write, (cache, axes), (rows, NODE_AXES), (start, ("batch",)), out=(cache, axes))
    return constrained(write(cache, rows, start))


def write_ring(
    cache: tuple[KV, ...],
    rows: tuple[KV, ...],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    after: Int[Array, " B"],
) -> tuple[KV, ...]:
    """Writes the first `count` of P rows, at positions `start`, `start` + 1, …, into caches of the last S positions.

    Position p is in row p mod S. `after` is as in `append`.
    """
    size, offset = capacity(cache), jnp.arange(rows[0].v.shape[2])
    kept = (offset < count[:, None]) & (offset >= count[:, None] - size)
    slots = jnp.where(kept, (start[:, None] + offset) % size, size) + jnp.minimum(after, 0)[:, None]
    return constrained(tuple(write_nodes(old, new, slots) for old, new in zip(cache, rows, strict=True)))


def _append_with(
    write: Callable[..., Array], cache: tuple[KV, ...], rows: tuple[KV, ...], start: Int[Array, " B"]
) -> tuple[KV, ...]:
    at = split_rows.held(start)
    put = lambda old, new, axis: write(old, split_rows.held_of_block(new, start, axis), at, axis)
    return tuple(KV(k=put(old.k, new.k, 3), v=put(old.v, new.v, 2)) for old, new in zip(cache, rows, strict=True))


def _write_together(old: Array, new: Array, start: Int[Array, " B"], axis: int) -> Array:
    """Writes the blocks of all sequences in one update; each begins at its own `start` along `axis`."""
    put = lambda into, block, at: jax.lax.dynamic_update_slice_in_dim(into, block.astype(into.dtype), at, axis - 1)
    if old.shape[0] > 1:
        return jax.vmap(put)(old, new, start)
    return put(old[0], new[0], start[0])[None]  # a plain slice update, not a scatter


def _write_by_rows(old: Array, new: Array, start: Int[Array, " B"], axis: int) -> Array:
    """Writes the block of each sequence in an update of its own."""
    new = with_layout_constraint(new.astype(old.dtype), Layout((0, 1, 2, 3)))  # else each row changes its layout
    for row in range(old.shape[0]):
        at = [start[row] if i == axis else start.dtype.type(0 if i else row) for i in range(4)]
        old = jax.lax.dynamic_update_slice(old, new[row : row + 1], at)
    return old


def enlarge(cache: tuple[KV, ...], cache_len: int) -> tuple[KV, ...]:
    """The same cache with `cache_len` positions. Deletes each old layer before it copies the next, unless traced."""
    larger = []
    for layer in cache:
        larger.append(_enlarged(layer, cache_len))
        if not isinstance(layer.k, core.Tracer):
            jax.block_until_ready(larger[-1])
            layer.k.delete()
            layer.v.delete()
    return tuple(larger)


@partial(jax.jit, static_argnames="cache_len")
def _enlarged(layer: KV, cache_len: int) -> KV:
    held = partial(_padded, cache_len=cache_len // split_rows.parts())
    return on_each_device(held, (layer, axes), out=(jax.eval_shape(partial(_padded, cache_len=cache_len), layer), axes))


def _padded(layer: KV, cache_len: int) -> KV:
    more, none = (0, cache_len - capacity((layer,))), (0, 0)
    return KV(k=jnp.pad(layer.k, (none, none, none, more)), v=jnp.pad(layer.v, (none, none, more, none)))


def constrained(cache: tuple[KV, ...]) -> tuple[KV, ...]:
    """The cache, sharded by `axes` on the current mesh."""
    return jax.tree_util.tree_map_with_path(lambda path, array: constrain(array, *axes(path)), cache)


def capacity(cache: tuple[KV, ...]) -> int:
    """Length of the cache, S."""
    return cache[0].v.shape[2]
