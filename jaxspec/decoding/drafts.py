"""A drafter's distributions of the token after each node."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@chex.dataclass(frozen=True)
class Drafts:
    """Distributions of the token after each of W nodes: one for each node (Q = W), or one for all (Q = 1).

    If `token` is None they are over the whole vocabulary (C = V). Otherwise they are over C candidates. Candidates with
    logit -inf are padding and are never proposed. All others in a row have different ids.
    """

    logits: Float[Array, "B Q C"]  # with `token`: log-probabilities of the candidates, whose sum may be below 1
    token: Int[Array, "#B #Q C"] | None = None  # ids of the candidates: one list for all, or one per distribution
    hidden: Float[Array, "B Q E"] | None = None  # hidden states that gave the logits; None: the drafter has none
    mass: Float[Array, "B Q"] | None = None  # without `token`: log of the chance that any of them follows; None: 0


def of_node(values: Array, slot: Int[Array, "B 1"]) -> Array:
    """values [B Q ...] of the node in one slot of the W: [B ...]."""
    if values.shape[1] == 1:
        return values[:, 0]
    index = slot.reshape(slot.shape + (1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")[:, 0]


def log_mass(drafts: Drafts) -> Float[Array, "B Q 1"] | float:
    """Log of the probability that any of the proposed tokens follows, which is below 0 for a few uncertain ones."""
    if drafts.token is not None:
        return jax.nn.logsumexp(drafts.logits.astype(jnp.float32), axis=-1, keepdims=True)
    return 0.0 if drafts.mass is None else drafts.mass[..., None]


def log_top(drafts: Drafts, slot: Int[Array, "B 1"]) -> Float[Array, " B"]:
    """Log of the largest probability in the distribution of one slot of the W, at temperature 1."""
    given = of_node(drafts.logits, slot).astype(jnp.float32)
    if drafts.token is not None:  # those are log-probabilities
        return given.max(axis=-1)
    mass = 0.0 if drafts.mass is None else of_node(drafts.mass, slot)
    return given.max(axis=-1) - jax.nn.logsumexp(given, axis=-1) + mass


def for_each(values: Array, width: int) -> Array:
    """Broadcasts values [B Q ...] to [B W ...]."""
    return jnp.broadcast_to(values, (values.shape[0], width, *values.shape[2:]))
