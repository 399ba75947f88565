"""A drafter's distributions of the token after each node."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@chex.dataclass(frozen=True)
class Drafts:
    """Distributions of the token after each of W nodes: Q of them, one a node (Q = W) or one for all (Q = 1).

    Over the whole vocabulary (C = V) where `token` is None; otherwise over C candidates in the vocabulary, no
    two above -inf alike. One of -inf is not proposed: it fills up a row that has fewer.
    """

    logits: Float[Array, "B Q C"]  # of candidates: their log-probabilities, which may sum to less than 1
    token: Int[Array, "#B #Q C"] | None = None  # ids of the candidates: one list for all, or one a distribution
    hidden: Float[Array, "B Q E"] | None = None  # that the logits were computed from; None: the drafter has none


def of_node(values: Array, slot: Int[Array, "B 1"]) -> Array:
    """[B ...] of values [B Q ...] at the node in this slot of the W."""
    if values.shape[1] == 1:
        return values[:, 0]
    index = slot.reshape(slot.shape + (1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")[:, 0]


def log_top(drafts: Drafts, slot: Int[Array, "B 1"]) -> Float[Array, " B"]:
    """The log of the largest probability after the node in this slot of the W, at temperature 1."""
    given = of_node(drafts.logits, slot).astype(jnp.float32)
    total = 0.0 if drafts.token is not None else jax.nn.logsumexp(given, axis=-1)  # of candidates: log-probabilities
    return given.max(axis=-1) - total


def for_each(values: Array, width: int) -> Array:
    """[B W ...] of values [B Q ...]."""
    return jnp.broadcast_to(values, (values.shape[0], width, *values.shape[2:]))
