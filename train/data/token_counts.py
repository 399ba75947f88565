"""How often each token occurs among those that count in the loss."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from jaxspec.train.data.text import Encoded


def counted(encoded: Sequence[Encoded], vocab_size: int) -> Int[np.ndarray, " V"]:
    """How often each token occurs among those that count."""
    counts = np.zeros(vocab_size, np.int64)
    for each in encoded:
        counts += np.bincount(each.tokens[each.counted], minlength=vocab_size)
    return counts
