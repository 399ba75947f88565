"""The largest of many values without sorting all of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

GROUP = 128  # lanes of a TPU's vector unit
FEW = 8192  # of so few values sorting is quicker on a CPU


def top_k(values: Shaped[Array, "*B V"], count: int) -> tuple[Shaped[Array, "*B C"], Int[Array, "*B C"]]:
    """The C = min(count, V) largest values in falling order, of equals the first; and where they are.

    As `jax.lax.top_k`, which sorts a whole vocabulary on a TPU. Here the vocabulary is cut into groups. The C groups of
    the largest maxima, of equals the first, hold the C largest values: before any other value come C of those maxima.
    """
    size = values.shape[-1]
    count = min(count, size)
    if size < FEW or size % GROUP or size < count * GROUP:
        found, place = jax.lax.top_k(values, count)
        return found, place
    groups = values.reshape(*values.shape[:-1], size // GROUP, GROUP)
    group = jnp.sort(jax.lax.top_k(groups.max(axis=-1), count)[1], axis=-1)  # in order: of equals the first
    held = jnp.take_along_axis(groups, group[..., None], axis=-2)
    found, place = jax.lax.top_k(held.reshape(*values.shape[:-1], count * GROUP), count)
    return found, jnp.take_along_axis(group, place // GROUP, axis=-1) * GROUP + place % GROUP
