"""DSpark's Markov term: a correction of a block drafter's logits by the token before (arXiv:2607.05147)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.drafters.draft_vocabulary import build_lm_head
from jaxspec.model.llama import lm_head, look_up


class MarkovTerm(nnx.Module):
    """A matrix [V, C] of rank R: for each token, what it adds to the logits of the C tokens that may follow.

    Args:
        mask: the tokens that can be drafted, from `draft_vocabulary.to_mask`; None: all.
    """

    def __init__(self, vocab_size: int, rank: int, mask: str | None, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        rows = jax.random.normal(rngs.params(), (vocab_size, rank), dtype)
        self.embedding = nnx.Param(rows, axes=("vocab", "embed"))
        self.head = build_lm_head(rank, mask, vocab_size, rngs, dtype)


def corrections(term: MarkovTerm, before: Int[Array, "B W"]) -> Float[Array, "B W C"]:
    """What is added to the logits after these tokens, float32."""
    return lm_head(look_up(term.embedding, before), term.head)
