"""Scores given texts: their log-probability under the target, and whether they are its greedy choice."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.batch import data_parts
from jaxspec.decoding.prefill_buckets import SMALLEST_CACHE, chunk_for, power_of_two, whole_chunks
from jaxspec.decoding.sampling import log_prob_of
from jaxspec.engine.session import not_finite
from jaxspec.host.processes import fetch
from jaxspec.model import backend
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from jaxspec.model.sharding import constrain

LOGITS = 2**28  # most logits held at once: 1 GB
NO_TARGET = -1

Text = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context and of its continuation."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The target's score of a continuation.

    Attributes:
        log_prob: sum of the tokens' log-probabilities at temperature 1.
        greedy: whether greedy decoding after the context gives the continuation.
    """

    log_prob: float
    greedy: bool


def scores(
    model: Checkpoint, texts: Sequence[Text], batch_size: int, room: int | None = None
) -> Iterator[tuple[int, Score]]:
    """Yields (index, score) of every text, in batches of `batch_size`, the longest texts first.

    Texts that differ only in their last token, such as choices of one letter, are read once.

    Args:
        room: most tokens that are read of a text; the last token is not read. Longer contexts are cut at the beginning.
            None: the model's positions.

    Raises:
        ValueError: a context or a continuation is empty, or a continuation is longer than `room`.
        FloatingPointError: logits are not finite.
    """
    room = min(room or model.config.model.usable_length, model.config.model.usable_length)
    alike = defaultdict[tuple[int, ...], list[int]](list)
    for place, (context, continuation) in enumerate(texts):
        if not context or not 0 < len(continuation) <= room:
            raise ValueError(
                f"text {place} has a context of {len(context)} tokens and a continuation of {len(continuation)}; "
                f"a score needs at least one token of each, and a continuation of at most {room} tokens"
            )
        alike[tuple([*context, *continuation][-room - 1 : -1])].append(place)
    groups = sorted(alike.items(), key=lambda group: len(group[0]), reverse=True)
    for begin in range(0, len(groups), batch_size):
        batch = groups[begin : begin + batch_size]
        columns = [[texts[place][1] for place in places] for _, places in batch]
        log_prob, greedy = _of_batch(model, [read for read, _ in batch], columns, min(batch_size, len(groups)))
        for row, (_, places) in enumerate(batch):
            for column, place in enumerate(places):
                if np.isnan(log_prob[row, column]):
                    raise not_finite(f"text {place}", model.target.dtype)
                yield place, Score(float(log_prob[row, column]), bool(greedy[row, column]))


def _of_batch(
    model: Checkpoint, read: Sequence[tuple[int, ...]], wanted: Sequence[Sequence[Sequence[int]]], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """`score` for one batch of texts.

    Args:
        read: the tokens that the target reads of each text: all but the last.
        wanted: the continuations of each text, which differ in their last token only.
        size: rows of the batch; unused rows are empty.
    """
    longest = max(map(len, read))
    with model.context():
        size += -size % data_parts()
        chunk = chunk_for(longest, chunks(size, model.config.model.vocab_size))
        rows = power_of_two(whole_chunks(longest, chunk), SMALLEST_CACHE)
        tokens = np.zeros((size, rows), np.int32)
        targets = np.full((size, rows, power_of_two(max(map(len, wanted)))), NO_TARGET, np.int32)
        for row, (text, continuations) in enumerate(zip(read, wanted, strict=True)):
            tokens[row, : len(text)] = text
            for column, continuation in enumerate(continuations):
                targets[row, len(text) - len(continuation) : len(text), column] = continuation
        return fetch(score(model.target, tokens, targets, chunk))


def chunks(batch: int, vocab_size: int) -> tuple[int, ...]:
    """The chunk sizes (ascending) whose logits fit in `LOGITS` for a batch of this size; at least the smallest."""
    every = backend.prefill_chunks()
    return tuple(chunk for chunk in every if chunk * batch * vocab_size <= LOGITS) or every[:1]


@partial(jax.jit, static_argnames="chunk")
def score(
    target: Llama, tokens: Int[Array | np.ndarray, "B S"], targets: Int[Array | np.ndarray, "B S C"], chunk: int
) -> tuple[Float[Array, "B C"], Bool[Array, "B C"]]:
    """Scores C continuations of each text, and reads `chunk` tokens at a time; `chunk` divides S.

    The LM head runs only for chunks with targets: after each token, the next token of each continuation (negative:
    none). Returns log p of each continuation, and whether all its tokens are the target's most probable ones.
    """
    tokens, targets = constrain(jnp.asarray(tokens), "batch"), constrain(jnp.asarray(targets), "batch")
    batch, rows = tokens.shape
    causal = causal_mask(batch, chunk)
    end = jnp.max(jnp.where((targets >= 0).any((0, 2)), jnp.arange(rows) + 1, 0))

    def score_chunk(hidden, wanted):
        logits = target.logits(hidden)
        log_probs = jax.vmap(log_prob_of, (None, 2), 2)(logits, jnp.maximum(wanted, 0))
        likeliest = (logits.argmax(-1)[..., None] == wanted) | (wanted < 0)
        return jnp.where(wanted < 0, 0, log_probs).sum(1), likeliest.all(1)

    ignore = lambda _, wanted: (jnp.zeros(wanted.shape[::2], jnp.float32), jnp.ones(wanted.shape[::2], bool))

    def read_chunk(carry):
        at, cache, log_prob, greedy = carry
        start = jnp.full((batch,), at)
        part = lambda array: jax.lax.dynamic_slice_in_dim(array, at, chunk, axis=1)
        positions = jnp.broadcast_to(at + jnp.arange(chunk), (batch, chunk))
        out = forward(target, part(tokens), positions, causal, cache, start)
        more, likeliest = jax.lax.cond((part(targets) >= 0).any(), score_chunk, ignore, out.hidden, part(targets))
        cache = kv.append(cache, out.nodes, start, after=out.hidden[:, 0].argmax(-1))
        return at + chunk, cache, log_prob + more, greedy & likeliest

    cache = kv.constrained(kv.allocate(target.config, batch, rows, target.dtype))
    begin = (jnp.int32(0), cache, *ignore(None, targets))
    _, _, log_prob, greedy = jax.lax.while_loop(lambda carry: carry[0] < end, read_chunk, begin)
    return log_prob, greedy
