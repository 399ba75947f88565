"""Which tokens count in the loss: all tokens of a document, and the assistant's tokens of a conversation."""

import numpy as np
from jaxtyping import Bool, Int, Int32

from jaxspec.train.data.chat import Span


def of_document(tokens: Int32[np.ndarray, " T"]) -> Bool[np.ndarray, " T"]:
    """All tokens of a document count."""
    return np.ones(len(tokens), bool)


def of_conversation(offsets: Int[np.ndarray, "T 2"], spans: tuple[Span, ...]) -> Bool[np.ndarray, " T"]:
    """Tokens of a conversation count if they overlap with one of the spans.

    Args:
        offsets: (start, end) in characters of each token.
        spans: (start, end) in characters of the assistant's turns.
    """
    counted = np.zeros(len(offsets), bool)
    for start, end in spans:
        counted |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return counted
