"""Truncation of a distribution: top-k, then top-p (nucleus sampling, arXiv:1904.09751)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def keep_top_k(
    logits: Float[Array, "*B V"], ordered: Float[Array, "*B V"], limit: Int[Array, "*#B 1"]
) -> tuple[Float[Array, "*B V"], Float[Array, "*B V"]]:
    """-inf for all but the `limit` largest logits (0: no limit); ties with the last one kept are kept too.

    Args:
        ordered: the same logits in falling order, which are cut likewise.
    """
    rank = jnp.clip(limit - 1, 0, logits.shape[-1] - 1)
    least = jnp.take_along_axis(ordered, jnp.broadcast_to(rank, ordered.shape[:-1] + (1,)), axis=-1)
    least = jnp.where(limit > 0, least, -jnp.inf)
    return jnp.where(logits < least, -jnp.inf, logits), jnp.where(ordered < least, -jnp.inf, ordered)


def keep_top_p(
    logits: Float[Array, "*B V"], ordered: Float[Array, "*B V"], share: Float[Array, "*#B 1"]
) -> Float[Array, "*B V"]:
    """-inf for all but the largest logits that make up this probability; ties with the last one kept are kept too."""
    probs = jnp.nan_to_num(jax.nn.softmax(ordered, axis=-1))
    before = jnp.cumsum(probs, axis=-1) - probs  # the first token is always kept
    kept = jnp.where(before < share, ordered, jnp.inf)
    return jnp.where(logits < kept.min(axis=-1, keepdims=True), -jnp.inf, logits)
