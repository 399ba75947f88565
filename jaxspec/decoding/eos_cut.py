"""Where a round's tokens end: at the first EOS among the accepted tokens, or at the budget."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def cut(
    next_token: Int[Array, "B P"], accepted: Int[Array, " B"], eos: Int[Array, " eos"], room: Int[Array, " B"]
) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    """The number of a round's tokens that are committed, and whether the last of them is an EOS.

    Args:
        next_token: the accepted drafts, then the bonus token; the rest has no meaning.
        accepted: number of accepted drafts; the round has `accepted` + 1 tokens.
        eos: token ids that end a text, padded with -1.
        room: tokens left in the budget; 0 commits nothing.
    """
    offset = jnp.arange(next_token.shape[1])
    ends = (next_token[..., None] == eos).any(axis=-1) & (offset <= accepted[:, None])
    until_eos = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1)
    count = jnp.minimum(until_eos, room).astype(jnp.int32)
    return count, (ends & (offset < count[:, None])).any(axis=1)
