"""Where a method's greedy text differs from plain decoding's, and whether rounding explains it: a tree runs through
other kernels than a single token, so a near-tie can flip. A divergence that is no near-tie is an error.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from jaxspec.decoding.decode_state import write_block
from jaxspec.decoding.prefill_buckets import power_of_two
from jaxspec.host.processes import fetch
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward

CHUNK = 512  # tokens of a prefix in one forward

Text = tuple[Sequence[int], Sequence[int]]  # token ids of a prompt, and of the text generated from it


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first difference between a text and plain decoding's text.

    `behind` is the difference between the largest logit and the worse of the two tokens' logits: at a near-tie of two
    tokens the gap, and None if one text ends here, which rounding cannot explain.
    """

    prompt: int  # number of the question, from 0, as those of its turn and of the token in the generated text
    turn: int
    position: int
    gap: float  # difference of the target's two largest logits at this position, in the target's own dtype
    behind: float | None

    def explained(self, noise: float) -> bool:
        """Whether rounding explains the difference: two evaluations within `noise` could choose these two tokens."""
        return self.behind is not None and self.behind <= 2 * noise


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, or the shorter text's length; None if the texts are equal."""
    if list(ours) == list(theirs):
        return None
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def diverges(target: Llama, prompt: int, turn: int, plain: Text, tokens: Sequence[int]) -> Divergence | None:
    """The divergence of `tokens` from plain decoding's text; None if they are equal."""
    before, expected = plain
    position = first_difference(expected, tokens)
    if position is None:
        return None
    logits = next_logits(target, [*before, *expected[:position]])
    second, best = np.sort(logits)[-2:].tolist()
    behind = None
    if position < min(len(expected), len(tokens)):
        behind = best - min(logits[expected[position]].item(), logits[tokens[position]].item())
    return Divergence(prompt=prompt, turn=turn, position=position, gap=best - second, behind=behind)


def next_logits(target: Llama, prefix: Sequence[int]) -> np.ndarray:
    """[V] float32, the logits of the token after `prefix`, computed in the target's dtype, as texts are decoded."""
    block = np.zeros((1, power_of_two(len(prefix))), np.int32)
    block[0, : len(prefix)] = prefix
    with jax.default_matmul_precision("highest"):  # as in decoding, if that is float32
        hidden, _ = read_texts(target, block, len(prefix))
        return np.asarray(fetch(target.logits(hidden[0, len(prefix) - 1])))


def noise(target: Llama, batches: Iterable[Sequence[Text]], sizes: Collection[int]) -> float:
    """Largest difference of a logit between forwards over one token and forwards over `size` tokens of generated text.

    Both start from the same prefill and continue with their own caches, as plain and speculative decoding do. The texts
    of one of `batches` were decoded together; `sizes` are those of verification, at least one.
    """
    worst, decoded = 0.0, list(filter(None, map(_decoded, batches)))
    # One shape for all batches, so that each program is compiled once.
    longest = max((len(prompt) for texts in decoded for prompt, _ in texts), default=0)
    for texts in decoded:
        block = _in_one_block(texts, max(sizes), longest)
        _, cache = read_texts(target, block.tokens, longest)
        ones = _features(target, block, cache, 1)
        for size in sizes:
            if size > 1:
                several = _features(target, block, cache, size)
                worst = max(worst, float(_difference(target, ones, several, block, size)))
    return worst


def batch_noise(target: Llama, batch: Sequence[Text]) -> float:
    """Largest difference of a logit between decoding texts in one batch and each alone, one token at a time."""
    texts = _decoded(batch)
    if not texts:
        return 0.0
    block = _in_one_block(texts, 1)

    def features(rows: _Block) -> Array:
        _, cache = read_texts(target, rows.tokens, int(block.begin.max()))
        return _features(target, rows, cache, 1)

    alone = jnp.concatenate([features(_Block(*(each[row, None] for each in block))) for row in range(len(texts))])
    return float(_difference(target, alone, features(block), block, 1))


def reread(target: Llama, texts: Sequence[Text], size: int) -> list[list[int]]:
    """Greedy texts as forwards over `size` tokens make them: each up to the first other greedy choice, inclusive."""
    width = power_of_two(max(len(tokens) for _, tokens in texts))
    block = _in_one_block(texts, max(size, width))
    _, cache = read_texts(target, block.tokens, int(block.begin.max()))
    features = _features(target, block, cache, size)
    chosen, found = np.asarray(fetch(_choices(target, features, block.begin, width))), []
    for row, (_, tokens) in zip(chosen, texts, strict=True):
        again = [*tokens[:1], *row[: len(tokens) - 1].tolist()]  # prefill chose the first token
        place = first_difference(tokens, again)
        found.append(list(tokens) if place is None else again[: place + 1])
    return found


def _decoded(batch: Sequence[Text]) -> list[Text]:
    """The texts of which more than prefill's token was generated."""
    return [(prompt, tokens) for prompt, tokens in batch if len(tokens) > 1]


class _Block(NamedTuple):
    """Texts in one array, and the first index and the end of the generated part of each."""

    tokens: Int[Array | np.ndarray, "B S"]
    begin: Int[Array | np.ndarray, " B"]
    end: Int[Array | np.ndarray, " B"]


def _in_one_block(texts: Sequence[Text], more: int, longest: int = 0) -> _Block:
    """A block with room for prompts of `longest` tokens and `more` columns."""
    begin = np.array([len(prompt) for prompt, _ in texts], np.int32)
    end = begin + np.array([len(tokens) for _, tokens in texts], np.int32)
    columns = max(int(begin.max()), longest) + int((end - begin).max()) + more
    block = np.zeros((len(texts), power_of_two(columns)), np.int32)
    for row, (prompt, tokens) in zip(block, texts, strict=True):
        row[: len(prompt) + len(tokens)] = [*prompt, *tokens]
    return _Block(block, begin, end)


def read_texts(
    target: Llama, block: Int[Array | np.ndarray, "B S"], longest: int
) -> tuple[Float[Array, "B W D"], tuple[kv.KV, ...]]:
    """Reads at least the first `longest` tokens of each text in a block. Returns their features, and the cache."""
    batch, rows = block.shape
    chunk = min(CHUNK, power_of_two(longest))
    cache, features = kv.allocate(target.config, batch, rows, target.dtype), []
    for at in range(0, longest, chunk):
        hidden, cache = _read(target, block[:, at : at + chunk], cache, np.full(batch, at, np.int32))
        features.append(hidden)
    return jnp.concatenate(features, axis=1), cache


def _advance(
    target: Llama, tokens: Int[Array, "B W"], cache: tuple[kv.KV, ...], cached: Int[Array, " B"]
) -> tuple[Float[Array, "B W D"], tuple[kv.KV, ...]]:
    """Runs W tokens after the `cached` rows. Returns their features, and the cache with their keys and values."""
    batch, width = tokens.shape
    out = forward(target, tokens, cached[:, None] + jnp.arange(width), causal_mask(batch, width), cache, cached)
    return out.hidden, kv.append(cache, out.nodes, cached)


_read = jax.jit(_advance)


@partial(jax.jit, static_argnames="size")
def _features(target: Llama, block: _Block, cache: tuple[kv.KV, ...], size: int) -> Float[Array, "B S D"]:
    """The features of the generated tokens, computed `size` tokens at a time, at their places in the block."""

    def step(carry):
        at, cache, features = carry
        hidden, cache = _advance(target, _window(block.tokens, at, size), cache, at)
        return at + size, cache, write_block(features, hidden, at)

    unread = lambda carry: (carry[0] < block.end).any()
    blank = jnp.zeros((*block.tokens.shape, target.config.hidden_size), target.dtype)
    return jax.lax.while_loop(unread, step, (block.begin, cache, blank))[2]


@partial(jax.jit, static_argnames="width")
def _choices(
    target: Llama, features: Float[Array, "B S D"], begin: Int[Array, " B"], width: int
) -> Int[Array, "B width"]:
    """The greedy choices after the features at begin[b] to begin[b] + width, from the logits of a column at a time."""
    generated = _window(features, begin, width).swapaxes(0, 1)
    return jax.lax.map(lambda column: target.logits(column).argmax(axis=-1), generated).T


@partial(jax.jit, static_argnames="size")
def _difference(
    target: Llama, ones: Float[Array, "B S D"], others: Float[Array, "B S D"], block: _Block, size: int
) -> Float[Array, ""]:
    """The largest difference of a logit. `others` are unembedded `size` at a time, `ones` as in plain decoding."""

    def step(carry):
        at, worst = carry
        logits, single = target.logits(_window(others, at, size)), _window(ones, at, size)

        def apart(offset):
            here = lambda values: jax.lax.dynamic_index_in_dim(values, offset, axis=1, keepdims=False)
            difference = jnp.abs(target.logits(here(single)) - here(logits)).max(axis=-1)
            return jnp.where(at + offset < block.end, difference, 0.0).max()

        return at + size, jnp.maximum(worst, jax.lax.map(apart, jnp.arange(size)).max())

    unread = lambda carry: (carry[0] < block.end).any()
    return jax.lax.while_loop(unread, step, (block.begin, jnp.float32(0)))[1]


def _window(values: Shaped[Array | np.ndarray, "B S *R"], at: Int[Array, " B"], size: int) -> Shaped[Array, "B W *R"]:
    return jax.vmap(lambda row, i: jax.lax.dynamic_slice_in_dim(row, i, size))(values, at)
