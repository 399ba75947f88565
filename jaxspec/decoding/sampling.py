"""From logits to the distribution that tokens are drawn from. All sampling parameters are applied here."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from jaxspec.decoding.top_p import keep_top_k, keep_top_p


@chex.dataclass(frozen=True)
class Sampling:
    """What a caller asked for, a value a row. Traced: another temperature compiles nothing."""

    temperature: Float[Array, " B"]  # 0: the argmax, always
    top_k: Int[Array, " B"] | None  # 0: no limit; None: no row has one
    top_p: Float[Array, " B"] | None  # 1: no limit; None: no row has one


def probabilities(logits: Float[Array, "B *W V"], sampling: Sampling) -> Float[Array, "B *W V"]:
    """The sampling distribution, float32: temperature, then top-k, then top-p, then softmax.

    Used for plain sampling, draft proposals, verification, the residual and the bonus token alike. At temperature 0
    it is one at the first largest logit. A row of logits that is -inf throughout has no distribution: all zeros.
    Ties with the last token kept are kept too.
    """
    kept = kept_logits(logits, sampling)
    peak = kept.max(axis=-1, keepdims=True)
    weight = jnp.where(jnp.isneginf(kept), 0.0, jnp.exp(kept - jnp.where(jnp.isneginf(peak), 0.0, peak)))
    soft = weight / jnp.maximum(weight.sum(axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    best = jax.nn.one_hot(logits.argmax(axis=-1), logits.shape[-1]) * ~jnp.isneginf(peak)
    return jnp.where(_per_row(sampling.temperature, logits) > 0, soft, best)


def kept_logits(logits: Float[Array, "B *W V"], sampling: Sampling) -> Float[Array, "B *W V"]:
    """Logits of the sampling distribution, float32 and not normalised: -inf for what top-k and top-p leave out.

    At temperature 0 the logits as they are, or the largest of them.
    """
    temperature = _per_row(sampling.temperature, logits)
    scaled = logits.astype(jnp.float32) / jnp.where(temperature > 0, temperature, 1.0)
    if sampling.top_k is not None:
        scaled = keep_top_k(scaled, _per_row(sampling.top_k, logits))
    return scaled if sampling.top_p is None else keep_top_p(scaled, _per_row(sampling.top_p, logits))


def _per_row(values: Shaped[Array, " B"], logits: Float[Array, "B *W V"]) -> Shaped[Array, "B *ones"]:
    """Values [B], of shape [B 1 … 1] as many axes as the logits have."""
    return values.reshape(-1, *[1] * (logits.ndim - 1))


def never_greedy(sampling: Sampling) -> Sampling:
    """For drafting, which may go by any q: with a temperature of 1 where it is 0, so that q is not one-hot."""
    return dataclasses.replace(sampling, temperature=jnp.where(sampling.temperature > 0, sampling.temperature, 1.0))


def fold(keys: Key[Array, " B"], data: Int[Array, " B"] | Int[Array, ""] | int) -> Key[Array, " B"]:
    """One key a row, bound to `data`."""
    data = jnp.broadcast_to(jnp.asarray(data, jnp.uint32), keys.shape)
    return jax.vmap(jax.random.fold_in)(keys, data)


def gumbel(keys: Key[Array, " B"], shape: tuple[int, ...]) -> Float[Array, "B *shape"]:
    """Standard Gumbel noise: adding it to log-probabilities and taking the k largest draws k without replacement."""
    return jax.vmap(lambda key: jax.random.gumbel(key, shape, jnp.float32))(keys)


def bernoulli(keys: Key[Array, " B"], chance: Float[Array, " B"]) -> Bool[Array, " B"]:
    """A coin a row, true with the given chance."""
    return jax.vmap(jax.random.uniform)(keys) < chance


def argmax(scores: Float[Array, "*B V"]) -> Int[Array, "*B"]:
    """The first of the largest, as `argmax`, which takes a CPU three times as long; among NaN, the last token."""
    last, best = scores.shape[-1] - 1, scores.max(axis=-1, keepdims=True)
    return jnp.where(scores == best, jnp.arange(last + 1), last).min(axis=-1).astype(jnp.int32)


def sample(keys: Key[Array, " B"], probs: Float[Array, "B *W V"]) -> Int[Array, "B *W"]:
    """A token from each distribution. Where all mass is on one token, that token, whatever the key."""
    return argmax(jnp.log(probs) + gumbel(keys, probs.shape[1:]))


def log_prob_of(logits: Float[Array, "B P V"], token: Int[Array, "B P"]) -> Float[Array, "B P"]:
    """log p(token) at temperature 1, whatever the text was drawn with."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), token[..., None], axis=-1)[..., 0]
