"""Truncation of a distribution: top-k, then top-p (nucleus sampling, arXiv:1904.09751).

Both keep the values that are not below a threshold. The threshold is found without a sort: sorting is slow on a TPU,
takes ten times as long on a CPU, and would gather a vocabulary that is sharded over devices.

Top-p drops a token if the tokens before it already have the probability p. This depends on float32 sums, whose rounding
depends on the order in which a device adds. So a token at which the sum reaches p up to rounding may be kept or
dropped, just as with rounding of the logits themselves. Within one program, equal logits are truncated alike.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.ordered import LEAST, ordered, values_of
from jaxspec.model import backend

BITS = 32


def keep_top_k(logits: Float[Array, "*B V"], limit: Int[Array, "*#B 1"]) -> Float[Array, "*B V"]:
    """The logits, with -inf for all but the `limit` largest (0: no limit). Ties with the last kept one are kept too."""
    count = jnp.clip(limit, 1, logits.shape[-1]).astype(jnp.float32)  # exact in float32, like sums of ones
    least = threshold(logits, jnp.ones_like(logits), count)
    return jnp.where((logits < least) & (limit > 0), -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "*B V"], share: Float[Array, "*#B 1"]) -> Float[Array, "*B V"]:
    """The logits, with -inf for all but the largest that together have the probability `share` (1: no limit).

    The largest logit is always kept, and so are ties with the last kept one. A row with a NaN, or with only -inf, is
    not changed.
    """
    weight = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    enough = jnp.maximum(share * weight.sum(axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    return jnp.where((logits < threshold(logits, weight, enough)) & (share < 1), -jnp.inf, logits)


def threshold(
    values: Float[Array, "*B V"], weight: Float[Array, "*B V"], enough: Float[Array, "*#B 1"]
) -> Float[Array, "*B 1"]:
    """The largest of the values such that the weights of all values not below it sum to at least `enough`.

    NaN if the sum of all weights is less. The threshold is found digit by digit, from the highest. Each pass over the
    values computes the sum of weights above each candidate for the next digit. Rounded sums of non-negative weights
    never decrease when a weight is added, so the threshold is unique despite rounding.
    """
    places = ordered(values)
    digit_bits = backend.threshold_bits()
    digits = range(1, 2**digit_bits)

    def find_digit(number: Int[Array, ""], found: Int[Array, "*B 1"]) -> Int[Array, "*B 1"]:
        unit = jnp.int32(1) << (BITS - digit_bits * (number + 1))
        above = [jnp.where(places >= found + digit * unit, weight, 0.0) for digit in digits]
        enough_there = [each.sum(axis=-1, keepdims=True) >= enough for each in above]
        return found + unit * sum(each.astype(jnp.int32) for each in enough_there)

    lowest = jnp.full((*values.shape[:-1], 1), LEAST)
    return values_of(jax.lax.fori_loop(0, BITS // digit_bits, find_digit, lowest))
