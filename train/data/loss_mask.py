"""Which tokens count in the loss: all tokens of a document, and the assistant's tokens of a conversation."""

import numpy as np
from jaxtyping import Bool, Int, Int32

from jaxspec.train.data.chat import Span


def of_document(tokens: Int32[np.ndarray, " T"]) -> Bool[np.ndarray, " T"]:
    """Every token counts."""
    return np.ones(len(tokens), bool)


def of_conversation(offsets: Int[np.ndarray, "T 2"], spans: tuple[Span, ...]) -> Bool[np.ndarray, " T"]:
    """The tokens count that have a character in one of the spans.

    Args:
        offsets: from which character and up to which one each token goes.
    """
    counted = np.zeros(len(offsets), bool)
    for start, end in spans:
        counted |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return counted
