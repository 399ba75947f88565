"""Draft vocabularies: the ids of a target's vocabulary that a head can draft (FR-Spec, arXiv:2502.14856; EAGLE-3).

A head's config keeps them as a mask, a bit a token of the target's vocabulary, in hexadecimal: 32 KB for 128,256
tokens. So they are known before any weight is loaded, and no cast of the weights can change them.
"""

import functools
from collections.abc import Iterable, Mapping

import numpy as np

LARGEST = 32_000
"""Of the heads that EAGLE's authors publish."""


def to_mask(ids: Iterable[int], vocab_size: int) -> str | None:
    """The mask of these ids; None where they are the whole vocabulary.

    Raises:
        ValueError: there are none, one is twice there, or one is outside the vocabulary.
    """
    given = np.array(list(ids), np.int64)
    if not given.size:
        raise ValueError("a draft vocabulary needs at least one token")
    if given.min() < 0 or given.max() >= vocab_size:
        worst = given.min() if given.min() < 0 else given.max()
        raise ValueError(f"a draft vocabulary has token {worst}, and the target's ids go from 0 to {vocab_size - 1}")
    inside = np.zeros(vocab_size, bool)
    inside[given] = True
    if inside.sum() < given.size:
        twice = np.flatnonzero(np.bincount(given) > 1)[0]
        raise ValueError(f"a draft vocabulary has token {twice} more than once")
    return None if inside.all() else np.packbits(inside).tobytes().hex()


@functools.lru_cache(maxsize=16)
def ids_of(mask: str | None, vocab_size: int) -> np.ndarray:
    """The ids of a mask, ascending, int32 [Vd], read-only.

    Raises:
        ValueError: the mask is not one of a vocabulary of this size.
    """
    if mask is None:
        ids = np.arange(vocab_size, dtype=np.int32)
    else:
        try:
            packed = np.frombuffer(bytes.fromhex(mask), np.uint8)
        except (ValueError, TypeError) as error:
            raise ValueError("the draft vocabulary is no mask in hexadecimal") from error
        if packed.size != -(-vocab_size // 8):
            raise ValueError(f"the draft vocabulary is a mask of {packed.size} bytes, not of {vocab_size} tokens")
        bits = np.unpackbits(packed)
        if bits[vocab_size:].any() or not bits.any():
            raise ValueError(f"the draft vocabulary is a mask of no tokens, or of some beyond {vocab_size - 1}")
        ids = np.flatnonzero(bits).astype(np.int32)
    ids.setflags(write=False)
    return ids


def size_of(mask: str | None, vocab_size: int) -> int:
    """How many tokens a mask has, Vd."""
    return len(ids_of(mask, vocab_size))


def most_frequent(counts: Mapping[int, int] | np.ndarray, size: int, vocab_size: int) -> np.ndarray:
    """The `size` ids that were counted most often, ascending; of equals the lowest id, also of those never seen.

    Args:
        counts: of each id, [V] or by id.
    """
    every = np.zeros(vocab_size, np.int64)
    if isinstance(counts, np.ndarray):
        every += counts
    else:
        for token, count in counts.items():
            every[token] = count
    return np.sort(np.argsort(-every, kind="stable")[:size]).astype(np.int32)
