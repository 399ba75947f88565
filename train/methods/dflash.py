"""Training of block heads: blocks that begin at random tokens of the text, each drafted in one pass.

DFlash's (arXiv:2602.06036), and by options JetSpec's (arXiv:2606.18394) and DSpark's (arXiv:2607.05147).

A block is one round of drafting: its root, the anchor, is a token of the text, and it predicts the tokens after that.
All blocks read the same keys and values of the tokens before their anchors, and do not see each other.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.drafters.dflash import Dflash, DflashHead
from jaxspec.model.attention import over_context
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import DflashObjective
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, ahead, divergence, positions, target_features

TEXT_SHARE = 0.1  # DSpark's weight of the text's cross-entropy beside the L1 distance
_ROWS = 512  # tokens of blocks in each window whose logits are held at once


@chex.dataclass(frozen=True)
class Blocks:
    """The blocks of each window."""

    anchor: Int[Array, "*chunks B anchors"]  # index in the window of each block's root
    real: Bool[Array, "*chunks B anchors"]  # whether the block is used; a window may have too few possible anchors


def train(settings: options.Dflash) -> DflashHead:
    """Trains a head; see `heads.train`."""
    drafter = Dflash(block=settings.block + (settings.rows == "next"))
    with heads.open_job(drafter.name, settings) as job:
        config = job.target.config.model
        heads.check_range("--taps", 0, config.num_layers - 1, *(settings.taps or ()))
        heads.check_range("--mask-token", 0, config.vocab_size - 1, settings.mask_token or 0)
        names = ("layers", "block", "taps", "mask_token", "markov_rank", "confidence")
        chosen: dict[str, Any] = {name: getattr(settings, name) for name in names}
        causal = (True,) * settings.layers if settings.causal else ()
        shape = drafter.head_for(config, anchor=settings.rows == "next", causal=causal, **chosen)
        head = initial(job.target.target, heads.built(job.target.mesh, drafter, shape, settings.recipe.seed))
        return heads.train(job, drafter, shape, head, partial(loss, objective=settings.objective))


def initial(target: Llama, random: DflashHead) -> DflashHead:
    """The head with the target's final norm, whose output the target's LM head reads; a Markov term starts at zero."""
    head = heads.started(random, target, {"norm": "norm"})
    if head.markov is not None:
        head.markov.lm_head.kernel[...] = jnp.zeros_like(head.markov.lm_head.kernel[...])
    return head


def loss(
    head: DflashHead, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: DflashObjective
) -> Summed:
    """Weighted loss of the tokens after each anchor: the text's cross-entropy, or a distance from the target.

    A confidence head adds the binary cross-entropy of its estimate with 1 - half the L1 distance of the two
    distributions, which is the acceptance rate of a sampled draft.

    `alpha_k` is the head's accuracy at distance k + 1 from the anchor: the share of tokens that are its first choice.
    The key draws the anchors; without one they are spread evenly.
    """
    features, taps = target_features(target, batch, head.options.taps)
    segment, tokens = jnp.asarray(batch.segment), jnp.asarray(batch.tokens)
    counted, context = jnp.asarray(batch.counted), head.context(taps, positions(segment))
    levels, pick = jnp.arange(1, head.options.levels + 1), jax.vmap(lambda row, places: row[places])
    compares = objective.goal != "cross-entropy" or head.confidence is not None

    @jax.checkpoint  # otherwise the logits of all blocks are kept for the gradient
    def of_chunk(blocks: Blocks) -> tuple[Array, Array, Array, Array]:
        hidden = draft(head, target, tokens, segment, blocks.anchor, context)
        logits = head.logits(target, hidden)
        at = blocks.anchor[..., None] + levels
        inside = jnp.minimum(at, tokens.shape[1] - 1)
        same = pick(segment, inside) == pick(segment, blocks.anchor)[..., None]
        valid = blocks.real[..., None] & (at < tokens.shape[1]) & same & pick(counted, inside)
        if objective.goal == "dspark":
            valid = jnp.cumprod(valid, axis=-1).astype(bool)
        label, before = pick(tokens, inside), pick(tokens, inside - 1)
        if head.markov is not None:
            logits = logits + head.markov(before.reshape(before.shape[0], -1)).reshape(logits.shape)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, label)
        weight = jax.lax.stop_gradient(weights(objective, entropy, valid, head.options.block))
        lost = entropy
        if compares:
            teacher = target.logits(pick(features, inside - 1))
            distance = jnp.abs(jax.nn.softmax(logits) - jax.nn.softmax(teacher)).sum(axis=-1)
            if objective.goal == "forward-kl":
                lost = divergence(objective, logits, teacher)
            elif objective.goal == "dspark":
                lost = TEXT_SHARE * entropy + (1 - TEXT_SHARE) * distance
            flat = lambda values: values.reshape(values.shape[0], -1, *values.shape[3:])
            if (odds := head.acceptance_odds(flat(hidden), flat(before))) is not None:
                rate = jax.lax.stop_gradient(1 - distance / 2)
                lost += optax.sigmoid_binary_cross_entropy(odds.reshape(rate.shape), rate)
        right = valid & (logits.argmax(-1) == label)
        counts = blocks.real.sum() if objective.weighting == "d-pace" else weight.sum()
        number = lambda flags: flags.sum((0, 1), jnp.int32)
        return (weight * lost).sum(), counts.astype(jnp.float32), number(right), number(valid)

    chunks = in_chunks(draw(segment, counted, objective.anchors, key), max(1, _ROWS // head.options.block))
    total, count, right, rows = (of_chunks.sum(axis=0) for of_chunks in jax.lax.map(of_chunk, chunks))
    alphas = {f"alpha_{k}": value for k, value in enumerate(right.astype(jnp.float32))}
    counts = {f"alpha_{k}/rows": value for k, value in enumerate(rows.astype(jnp.float32))}
    return total, {"count": count, **alphas, **counts}


def draft(
    head: DflashHead,
    target: Llama,
    tokens: Int[Array, "B T"],
    segment: Int[Array, "B T"],
    anchor: Int[Array, "B anchors"],
    context: tuple[KV, ...],
) -> Float[Array, "B anchors levels D"]:
    """The LM head's input at each level of each block.

    `context` has each layer's keys and values of all tokens. A block sees those of its document before its anchor.
    """
    width, (batch, anchors) = head.options.block, anchor.shape
    of_anchor = lambda values: jnp.take_along_axis(values, anchor, axis=1)
    place = (of_anchor(positions(segment))[..., None] + jnp.arange(width)).reshape(batch, -1)
    ids = head.masked_block(of_anchor(tokens).reshape(-1), width).reshape(batch, -1)
    # All blocks together, without vmap: under vmap `layers.product` has a gradient of the kernel for each block.
    attends = [over_context(segment, anchor, *layer) for layer in zip(context, head.causal, strict=True)]
    hidden = head(target, ids, rotary(head.config, place), attends)
    return head.drafting_rows(hidden.reshape(batch, anchors, width, -1))


def draw(segment: Int[Array, "B T"], counted: Bool[Array, "B T"], count: int, key: Key[Array, ""] | None) -> Blocks:
    """Draws up to `count` different anchors per window: tokens whose next token is in the same document and counts."""
    may = ahead(counted, 1) & (jnp.roll(segment, -1, axis=1) == segment)
    count = min(count, segment.shape[1] - 1)
    if key is not None:
        score, anchor = jax.lax.top_k(jnp.where(may, jax.random.uniform(key, may.shape, jnp.float32), -1.0), count)
        return Blocks(anchor=anchor, real=score >= 0)
    possible = may.sum(axis=1, keepdims=True)
    place = (jnp.arange(count) * jnp.maximum(possible / count, 1.0)).astype(jnp.int32)
    order = jnp.argsort(~may, axis=1, stable=True)
    return Blocks(anchor=jnp.take_along_axis(order, place, axis=1), real=place < possible)


def in_chunks(blocks: Blocks, size: int) -> Blocks:
    """The blocks in equal chunks of at most `size` blocks per window, on a new first axis; the last chunk is padded."""
    batch, count = blocks.anchor.shape
    size = -(-count // -(-count // size))
    cut = lambda values: jnp.pad(values, [(0, 0), (0, -count % size)]).reshape(batch, -1, size).swapaxes(0, 1)
    return jax.tree.map(cut, blocks)


def weights(
    objective: DflashObjective,
    entropy: Float[Array, "B anchors levels"],
    valid: Bool[Array, "B anchors levels"],
    block: int,
) -> Float[Array, "B anchors levels"]:
    """The weight of each level's loss: a fixed decay, or the expected number of accepted tokens from it on (D-PACE).

    `entropy` is the cross-entropy of the text's token. Levels that are not `valid` have weight 0.
    """
    if objective.weighting == "uniform":
        return valid.astype(jnp.float32)
    if objective.weighting == "decay":
        return valid * jnp.exp(-jnp.arange(entropy.shape[-1]) / objective.scale(block))
    smoothed = objective.smoothing + (1 - objective.smoothing) * jnp.exp(-entropy)
    reached = jnp.cumprod(smoothed, axis=-1) * valid
    return valid * jnp.flip(jnp.cumsum(jnp.flip(reached, -1), axis=-1), -1)
