"""KV caches whose rows are split over devices: they share KV heads, and each holds every R-th row.

Along the mesh's axis `rows` of R devices, row s of a text is on device s mod R. So all devices have equally many rows
of a text, in order and without gaps. Each device attends to its own rows with all query heads of its KV heads. The
results are combined by their log-sum-exp, as in Flash-Decoding (Dao et al., 2023).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

AXIS = "rows"
"""The mesh's axis."""


def parts() -> int:
    """Number of devices that the rows of a cache are split over on the current mesh; 1 without a mesh."""
    return jax.sharding.get_abstract_mesh().shape.get(AXIS, 1)


def held(count: Int[Array, "B *W"]) -> Int[Array, "B *W"]:
    """How many of the first `count` rows of each text this device holds."""
    if parts() == 1:
        return count
    return (count - jax.lax.axis_index(AXIS) + parts() - 1) // parts()


def held_of_block(block: Array, start: Int[Array, " B"], axis: int) -> Array:
    """This device's rows of a block of P rows, which begins at row `start` of each text: P / R rows along `axis`,
    rounded up. If the device has one row fewer, the last has no meaning."""
    if (count := parts()) == 1:
        return block
    length = block.shape[axis]
    every = -(-length // count)
    padded = jnp.pad(block, [(0, every * count - length if i == axis else 0) for i in range(block.ndim)])
    first = ((jax.lax.axis_index(AXIS) - start) % count).reshape(-1, *[1] * (block.ndim - 1))
    chosen = jax.lax.slice_in_dim(padded, 0, None, count, axis)
    for offset in range(1, count):
        chosen = jnp.where(first == offset, jax.lax.slice_in_dim(padded, offset, None, count, axis), chosen)
    return chosen


def combine(
    query: Float[Array, "B K G W H"],
    attend: Callable[[Float[Array, "B K G W H"], Bool[Array, ""]], tuple[Array, Float[Array, "B K G W 1"]]],
    *,
    group_is_split: bool,
) -> Float[Array, "B K G W H"]:
    """Attention to the rows of all devices, from the attention of each to its own.

    Args:
        attend: given all queries of this device's KV heads, and whether the device is the first one, returns the
            attention to its own rows and the log-sum-exp of their scores. The first device also attends to the nodes.
        group_is_split: whether the query heads of a KV head are split over these devices; otherwise each has all.
    """
    if group_is_split:
        query = jax.lax.all_gather(query, AXIS, axis=2, tiled=True)
    out, log_total = attend(query, jax.lax.axis_index(AXIS) == 0)
    every = jax.lax.all_gather(log_total, AXIS)
    share = jnp.exp(log_total - jax.nn.logsumexp(every, axis=0))
    weighted = out.astype(jnp.float32) * share
    if group_is_split:
        return jax.lax.psum_scatter(weighted, AXIS, scatter_dimension=2, tiled=True)
    return jax.lax.psum(weighted, AXIS)
