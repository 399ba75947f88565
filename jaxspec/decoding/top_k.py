"""Top-k without sorting all values and without gathering them on one device."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from jaxspec.model import backend
from jaxspec.model.sharding import constrain, num_shards

LEAST = np.int32(np.iinfo(np.int32).min)


def ordered(values: Float[Array, "*B V"]) -> Int[Array, "*B V"]:
    """int32 values in the order of the float32 values, all above `LEAST`; 0 and -0 are equal."""
    return _reverse_negatives(jax.lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32))


def values_of(integers: Int[Array, "*B V"]) -> Float[Array, "*B V"]:
    """Inverse of `ordered`; NaN for `LEAST`."""
    return jax.lax.bitcast_convert_type(_reverse_negatives(integers), jnp.float32)


def _reverse_negatives(bits: Int[Array, "*B V"]) -> Int[Array, "*B V"]:
    """Reverses the order of negative floats' bits. It is its own inverse."""
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


GROUP = 128  # values in a group
FEW = 8192  # with fewer values, sorting is faster on a CPU
PASSES = 16  # largest count for which a TPU finds the values one after the other
COMPARED = 256  # largest number of values of which a TPU compares each with each

TopK = tuple[Shaped[Array, "*B C"], Int[Array, "*B C"]]  # the values, and their indices


def top_k(values: Shaped[Array, "*B V"], count: int) -> TopK:
    """The C = min(count, V) largest values in falling order, and their indices. Equal values keep their order.

    The result is that of `jax.lax.top_k`, which sorts a whole vocabulary on a TPU. If the vocabulary is sharded, each
    device finds the largest values of its part, and only these are compared.
    """
    size = values.shape[-1]
    parts, count = num_shards("vocab", size), min(count, size)
    if parts == 1 or count > size // parts:
        return _top_k(values, count)
    lead = values.shape[:-1]
    whole = (None,) * len(lead)
    cut = constrain(values.reshape(*lead, parts, size // parts), "batch", *whole[1:], "vocab", None)
    top, place = _top_k(cut, count)
    place += jnp.arange(parts)[:, None] * (size // parts)
    top, place = (constrain(x.reshape(*lead, parts * count), "batch", *whole) for x in (top, place))
    best, rank = _top_k(top, count)  # parts are in order, so equal values keep theirs
    return best, jnp.take_along_axis(place, rank, axis=-1)


def _top_k(values: Shaped[Array, "*B V"], count: int) -> TopK:
    """`top_k` of values that are not sharded along V."""
    size = values.shape[-1]
    if backend.sorts_slowly() and count > 1 and size <= COMPARED:
        return _by_rank(values, count)
    if backend.sorts_slowly() and count <= PASSES:
        return _by_passes(values, count)
    # On one device XLA has a fast selection for matrices only. On a mesh no axes are merged: several may be sharded.
    rows = values.reshape(-1, size) if jax.sharding.get_abstract_mesh().empty else values
    many = size >= FEW and size % GROUP == 0 and size >= count * GROUP  # groups are possible and faster
    top, place = (_by_groups if many else jax.lax.top_k)(rows, count)
    shape = (*values.shape[:-1], count)
    return top.reshape(shape), place.reshape(shape)


def _by_passes(values: Shaped[Array, "*B V"], count: int) -> TopK:
    """Finds the largest value, then the next, and so on: C passes. A TPU's bitonic sort of 8,192 values takes 91."""
    place = jnp.broadcast_to(jnp.arange(values.shape[-1], dtype=jnp.int32), values.shape)
    left, top, top_place = ordered(values.astype(jnp.float32)), [], []
    for _ in range(count):
        best, first = jax.lax.reduce((left, place), (LEAST, np.int32(-1)), _larger, (values.ndim - 1,))
        top.append(best)
        top_place.append(first)
        left = jnp.where(place == first[..., None], LEAST, left)
    return values_of(jnp.stack(top, axis=-1)).astype(values.dtype), jnp.stack(top_place, axis=-1)


def _by_rank(values: Shaped[Array, "*B V"], count: int) -> TopK:
    """Compares each value with each other. A value's rank is the number of values that come before it.

    For few values this is faster than `_by_passes`, because each of many small operations takes a TPU a microsecond.
    """
    bits, place = ordered(values.astype(jnp.float32)), jnp.arange(values.shape[-1], dtype=jnp.int32)
    one, other = bits[..., :, None], bits[..., None, :]
    before = (other > one) | ((other == one) & (place < place[:, None]))
    rank = before.sum(axis=-1, dtype=jnp.int32)
    chosen = rank[..., None, :] == jnp.arange(count)[:, None]

    def pick(each: Int[Array, "*_ V"]) -> Int[Array, "*_ C"]:
        return jnp.where(chosen, each, 0).sum(axis=-1, dtype=jnp.int32)

    return values_of(pick(bits[..., None, :])).astype(values.dtype), pick(place)


def _larger(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """The larger of two values with its index; the first of equal ones."""
    (value, place), (other_value, other_place) = one, other
    wins = (value > other_value) | ((value == other_value) & (place < other_place))
    return jnp.where(wins, value, other_value), jnp.where(wins, place, other_place)


def _by_groups(values: Shaped[Array, "*B V"], count: int) -> TopK:
    """Searches only the C groups with the largest maxima (the first of equal ones). They hold the C largest values:
    any value outside is preceded by C of these maxima."""
    size = values.shape[-1]
    groups = values.reshape(*values.shape[:-1], size // GROUP, GROUP)
    group = jnp.sort(jax.lax.top_k(groups.max(axis=-1), count)[1], axis=-1)  # sorted: keeps the order of equal values
    held = jnp.take_along_axis(groups, group[..., None], axis=-2)
    top, place = jax.lax.top_k(held.reshape(*values.shape[:-1], count * GROUP), count)
    return top, jnp.take_along_axis(group, place // GROUP, axis=-1) * GROUP + place % GROUP
