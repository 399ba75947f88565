"""From logits to the distribution that tokens are drawn from. All sampling parameters are applied here."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from jaxspec.decoding.top_k import LEAST, ordered, values_of
from jaxspec.model import backend


@chex.dataclass(frozen=True)
class Sampling:
    """Sampling parameters, one value per row. They are traced, so other values cause no compilation."""

    temperature: Float[Array, " B"]  # 0: greedy
    top_k: Int[Array, " B"] | None  # 0: no limit; None: no row has one
    top_p: Float[Array, " B"] | None  # 1: no limit; None: no row has one


def probabilities(logits: Float[Array, "B *W V"], sampling: Sampling) -> Float[Array, "B *W V"]:
    """The sampling distribution, float32: temperature, then top-k, then top-p, then softmax.

    It serves plain sampling, proposals, verification, the residual and the bonus token. At temperature 0 it is 1 at the
    first of the largest logits. If all logits of a row are -inf, all its probabilities are 0. Tokens that tie with the
    last kept token are kept too.
    """
    kept = kept_logits(logits, sampling)
    peak = kept.max(axis=-1, keepdims=True)
    weight = jnp.where(jnp.isneginf(kept), 0.0, jnp.exp(kept - jnp.where(jnp.isneginf(peak), 0.0, peak)))
    soft = weight / jnp.maximum(weight.sum(axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    best = jax.nn.one_hot(logits.argmax(axis=-1), logits.shape[-1], dtype=jnp.float32) * ~jnp.isneginf(peak)
    return jnp.where(_per_row(sampling.temperature, logits) > 0, soft, best)


def kept_logits(logits: Float[Array, "B *W V"], sampling: Sampling) -> Float[Array, "B *W V"]:
    """Unnormalised logits of the sampling distribution, float32, unscaled at temperature 0; -inf for removed tokens."""
    temperature = _per_row(sampling.temperature, logits)
    scaled = logits.astype(jnp.float32) / jnp.where(temperature > 0, temperature, 1.0)
    if sampling.top_k is not None:
        scaled = keep_top_k(scaled, _per_row(sampling.top_k, logits))
    return scaled if sampling.top_p is None else keep_top_p(scaled, _per_row(sampling.top_p, logits))


def _per_row(values: Shaped[Array, " B"], logits: Float[Array, "B *W V"]) -> Shaped[Array, "B *ones"]:
    """Values [B] reshaped to [B 1 … 1], with as many axes as the logits."""
    return values.reshape(-1, *[1] * (logits.ndim - 1))


def never_greedy(sampling: Sampling) -> Sampling:
    """The parameters with temperature 1 instead of 0, so that q is not one-hot. Drafting may use any q."""
    return dataclasses.replace(sampling, temperature=jnp.where(sampling.temperature > 0, sampling.temperature, 1.0))


def row_key(seed: Any, index: Any) -> Key[Array, ""]:
    """The key of a text, from the seed and the prompt's index in the call.

    Always Threefry, whatever JAX's default: under `vmap`, `rbg` draws the noise of all rows from the first row's key.
    """
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), index)


def fold(keys: Key[Array, " B"], data: Int[Array, " B"] | Int[Array, ""] | int) -> Key[Array, " B"]:
    """One key per row, folded with `data`."""
    data = jnp.broadcast_to(jnp.asarray(data, jnp.uint32), keys.shape)
    return jax.vmap(jax.random.fold_in)(keys, data)


def gumbel(keys: Key[Array, " B"], shape: tuple[int, ...]) -> Float[Array, "B *shape"]:
    """Standard Gumbel noise. The k largest of log-probabilities plus this noise are k draws without replacement."""
    return jax.vmap(lambda key: jax.random.gumbel(key, shape, jnp.float32))(keys)


def bernoulli(keys: Key[Array, " B"], chance: Float[Array, " B"]) -> Bool[Array, " B"]:
    """One random bool per row, true with the given probability."""
    return jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32))(keys) < chance


def argmax(scores: Float[Array, "*B V"]) -> Int[Array, "*B"]:
    """Index of the first largest score; the last index if a score is NaN. `jnp.argmax` is slower on a CPU."""
    last, best = scores.shape[-1] - 1, scores.max(axis=-1, keepdims=True)
    return jnp.where(scores == best, jnp.arange(last + 1), last).min(axis=-1).astype(jnp.int32)


def are_finite(logits: Float[Array, "*B V"]) -> Bool[Array, "*B"]:
    """Whether the largest logit is finite. It is not if any logit is NaN or inf, or all are -inf.

    Overflow in a layer makes NaN. XLA computes this maximum once for `argmax` too, so it costs nothing.
    """
    return jnp.isfinite(logits.max(axis=-1))


def sample(keys: Key[Array, " B"], probs: Float[Array, "B *W V"]) -> Int[Array, "B *W"]:
    """Samples a token from each distribution. If one token has all the mass, it is always this token."""
    return argmax(jnp.log(probs) + gumbel(keys, probs.shape[1:]))


def log_prob_of(logits: Float[Array, "B P V"], token: Int[Array, "B P"]) -> Float[Array, "B P"]:
    """log p(token) at temperature 1, whatever the sampling parameters."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[..., None], axis=-1)[..., 0]


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

    NaN if the sum of all weights is less. The threshold is found digit by digit, from the highest. Each pass sums the
    weights of the values at or above each candidate for the next digit. Rounded sums of non-negative weights
    never decrease when a weight is added, so the threshold is unique despite rounding.
    """
    places = ordered(values)
    digit_bits = backend.threshold_bits()
    digits = range(1, 2**digit_bits)

    def add_digit(number: Int[Array, ""], least: Int[Array, "*B 1"]) -> Int[Array, "*B 1"]:
        unit = jnp.int32(1) << (BITS - digit_bits * (number + 1))
        above = [jnp.where(places >= least + digit * unit, weight, 0.0) for digit in digits]
        suffices = [each.sum(axis=-1, keepdims=True) >= enough for each in above]
        return least + unit * sum(each.astype(jnp.int32) for each in suffices)

    lowest = jnp.full((*values.shape[:-1], 1), LEAST)
    return values_of(jax.lax.fori_loop(0, BITS // digit_bits, add_digit, lowest))
