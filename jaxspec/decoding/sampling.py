"""From logits to the distribution that tokens are drawn from. All sampling parameters are applied here.

At the end is the top-k of a vocabulary, which drafting uses too.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from jaxspec.model import backend
from jaxspec.model.sharding import constrain, num_shards


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
    """Unnormalised logits of the sampling distribution, float32; -inf for tokens that top-k and top-p remove.

    At temperature 0 the logits are not scaled.
    """
    temperature = _per_row(sampling.temperature, logits)
    scaled = logits.astype(jnp.float32) / jnp.where(temperature > 0, temperature, 1.0)
    if sampling.top_k is not None:
        scaled = keep_top_k(scaled, _per_row(sampling.top_k, logits))
    return scaled if sampling.top_p is None else keep_top_p(scaled, _per_row(sampling.top_p, logits))


def _per_row(values: Shaped[Array, " B"], logits: Float[Array, "B *W V"]) -> Shaped[Array, "B *ones"]:
    """Values [B] reshaped to [B 1 … 1], with as many axes as the logits."""
    return values.reshape(-1, *[1] * (logits.ndim - 1))


def never_greedy(sampling: Sampling) -> Sampling:
    """The parameters with temperature 1 instead of 0, so that the draft distribution q is not one-hot.

    Drafting may use any q.
    """
    return dataclasses.replace(sampling, temperature=jnp.where(sampling.temperature > 0, sampling.temperature, 1.0))


def row_key(seed: Any, index: Any) -> Key[Array, ""]:
    """The key of a text, from the seed and its place in the call.

    It is of Threefry, whatever JAX's default is: `rbg` takes the noise of all rows under `vmap` from the first's key.
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


# --- top-k without sorting all values and without gathering them on one device

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
    """Finds the largest value, then the largest of the others, and so on: C passes.

    A TPU sorts by a bitonic network, which has 91 passes for 8,192 values.
    """
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
