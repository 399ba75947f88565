"""Draft vocabularies: the tokens that a head can draft (FR-Spec, arXiv:2502.14856; EAGLE-3).

A head's config stores them as a hexadecimal mask with one bit per token of the target's vocabulary: 32 KB of text for
128,256 tokens. So the ids are known before any weight is loaded, and casting the weights cannot change them.
"""

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import Drafts
from jaxspec.model.layers import Linear
from jaxspec.model.llama import Llama

LARGEST = 32_000  # as in the heads that EAGLE's authors publish


def to_mask(ids: Iterable[int], vocab_size: int) -> str | None:
    """The mask of these ids; None if they are the whole vocabulary.

    Raises ValueError if there are no ids, an id occurs twice, or is outside the vocabulary.
    """
    tokens = np.array(list(ids), np.int64)
    if not tokens.size:
        raise ValueError("a draft vocabulary needs at least one token")
    if wrong := [token for token in (tokens.min(), tokens.max()) if not 0 <= token < vocab_size]:
        raise ValueError(f"a draft vocabulary has token {wrong[0]}, and the target's ids go from 0 to {vocab_size - 1}")
    counts = np.bincount(tokens, minlength=vocab_size)
    if (repeated := counts > 1).any():
        raise ValueError(f"a draft vocabulary has token {repeated.argmax()} more than once")
    return None if counts.all() else np.packbits(counts > 0).tobytes().hex()


@functools.lru_cache(maxsize=16)
def ids_of(mask: str | None, vocab_size: int) -> np.ndarray:
    """The ids of a mask, ascending, int32 [Vd], read-only. Raises ValueError if it does not fit the vocabulary."""
    if mask is None:
        ids = np.arange(vocab_size, dtype=np.int32)
    else:
        try:
            packed = np.frombuffer(bytes.fromhex(mask), np.uint8)
        except (ValueError, TypeError) as error:
            raise ValueError("has a draft_vocabulary that is not a hexadecimal mask") from error
        if packed.size != -(-vocab_size // 8):
            raise ValueError(f"has a draft_vocabulary of {packed.size} bytes, which does not fit {vocab_size} tokens")
        bits = np.unpackbits(packed)
        if bits[vocab_size:].any() or not bits.any():
            raise ValueError(f"has a draft_vocabulary without tokens, or with tokens above {vocab_size - 1}")
        ids = np.flatnonzero(bits).astype(np.int32)
    ids.setflags(write=False)
    return ids


def size_of(mask: str | None, vocab_size: int) -> int:
    """Number of tokens in a mask, Vd."""
    return len(ids_of(mask, vocab_size))


def with_lm_head(model: Llama, mask: str | None, rngs: nnx.Rngs, dtype: jnp.dtype) -> Llama:
    """The draft model with an LM head that has only the columns of the mask's tokens; unchanged if the mask is None."""
    if mask is not None:
        head = build_lm_head(model.config.hidden_size, mask, model.config.vocab_size, rngs, dtype)
        model.lm_head = nnx.data(head)  # it may have had none, with a tied embedding
        model.draft_vocabulary = mask
    return model


def build_lm_head(width: int, mask: str | None, vocab_size: int, rngs: nnx.Rngs, dtype: jnp.dtype) -> Linear:
    """An LM head with random columns for the tokens of a mask."""
    return Linear(rngs, (width, size_of(mask, vocab_size)), ("embed", "vocab"), bias=False, dtype=dtype)


def drafts_of(
    mask: str | None, vocab_size: int, logits: Float[Array, "B Q C"], hidden: Float[Array, "B Q E"]
) -> Drafts:
    """Drafts from logits over a draft vocabulary: candidates that share one list of ids. Without a mask: all tokens."""
    if mask is None:
        return Drafts(logits=logits, hidden=hidden)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_probs = jnp.where(total == -jnp.inf, -jnp.inf, logits - total)  # a row of only -inf proposes nothing
    return Drafts(logits=log_probs, token=jnp.asarray(ids_of(mask, vocab_size))[None, None], hidden=hidden)


def most_frequent(counts: Int[np.ndarray, " V"], size: int, always: Collection[int] = ()) -> Int[np.ndarray, " C"]:
    """The `size` ids with the largest counts, ascending; `always` are among them. Of equal counts, the lowest ids."""
    wanted = counts.astype(np.int64)
    wanted[list(always)] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-wanted, kind="stable")[:size]).astype(np.int32)


def check(settings: Mapping[str, Any], vocab_size: int) -> None:
    """Raises ValueError, worded for a head, if its draft vocabulary does not fit this target."""
    mask = settings.get("draft_vocabulary")
    if not isinstance(mask, str | None):
        raise ValueError("has a draft_vocabulary that is not a hexadecimal mask")
    ids_of(mask, vocab_size)
