"""Medusa: extra heads beside the LM head, each of which predicts one token further ahead (arXiv:2401.10774, §2.1.1).

All heads read the target's feature at the last verified position. The LM head predicted the root from it, so head 0
predicts the token after the root, and head k the token at level k + 1. No head sees the drafted tokens in between.
Levels beyond the number of heads get no drafts.

This is Medusa-1: the target stays frozen. The paper's typical acceptance is not lossless and is not implemented.
"""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, last_valid
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.drafters.draft_vocabulary import drafts_of, size_of
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear
from jaxspec.model.sharding import constrain

Feature = Float[Array, "B D"]


class MedusaHead(nnx.Module):
    """One head: a residual block (D → D) and its own LM head (D → vocabulary)."""

    def __init__(self, width: int, vocab: int, *, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32):
        self.residual = Linear(rngs, (width, width), ("input", "embed"), bias=True, dtype=dtype)
        self.lm_head = Linear(rngs, (width, vocab), ("embed", "vocab"), bias=False, dtype=dtype)

    def __call__(self, x: Float[Array, "*B D"]) -> tuple[Float[Array, "*B V"], Float[Array, "*B D"]]:
        """Logits (float32) and the hidden states that gave them: x + SiLU(W x + b)."""
        # Replicated, because the partitioner would otherwise shard the product.
        whole = lambda x: constrain(x, "batch", *[None] * (x.ndim - 1))
        hidden = whole((x + jax.nn.silu(whole(self.residual(x)))).astype(x.dtype))
        return self.lm_head(hidden), hidden


class MedusaHeads(nnx.Module):
    """All heads for a target of width D, with random weights until loaded or initialised."""

    def __init__(
        self,
        width: int,
        vocab: int,
        *,
        rngs: nnx.Rngs,
        heads: int,
        draft_vocabulary: str | None = None,
        dtype: jnp.dtype = FLOAT32,
    ):
        self.draft_vocabulary, tokens = draft_vocabulary, size_of(draft_vocabulary, vocab)
        self.heads = nnx.List([MedusaHead(width, tokens, rngs=rngs, dtype=dtype) for _ in range(heads)])


@final
@dataclasses.dataclass(frozen=True)
class Medusa(Drafter):
    """Medusa-1: one trained head for each drafted position.

    Head k drafts level k + 1 of the tree. It runs only if that level is drafted. The state is the target's feature at
    the last verified position.
    """

    name: ClassVar[str] = "medusa"
    rank: ClassVar[int | None] = 40
    has_head: ClassVar[bool] = True
    abstains: ClassVar[bool] = True

    def own_levels(self, draft: MedusaHeads) -> int:
        return len(draft.heads)

    def head_for(self, target: LlamaConfig, heads: int = 5) -> HeadShape:
        """Five heads by default: EDD's paper compares drafters on chains of five tokens."""
        return HeadShape(target, {"heads": heads})

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> MedusaHeads:
        return MedusaHeads(shape.model.hidden_size, shape.model.vocab_size, rngs=rngs, dtype=dtype, **shape.settings)

    def init(self, models: Models, batch: int, cache_len: int) -> Feature:
        return jnp.zeros((batch, models.target.config.hidden_size), models.target.dtype)

    def observe(self, models: Models, state: Feature, committed: Committed) -> Feature:
        last = last_valid(committed.hidden, committed.count)
        return jnp.where((committed.count > 0)[:, None], last, state)

    def root(self, models: Models, state: Feature, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, Feature]:
        return _drafts_of(models, *models.draft.heads[0](state)), state

    def expand(
        self, models: Models, state: Feature, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, Feature]:
        # A switch, because a slice of stacked weights would be copied. Levels beyond the last branch take the last one.
        tokens = size_of(models.draft.draft_vocabulary, models.target.config.vocab_size)
        nothing = lambda x: (jnp.full((len(x), tokens), -jnp.inf, jnp.float32), x)
        return _drafts_of(models, *jax.lax.switch(frontier.level, [*models.draft.heads, nothing], state)), state


def _drafts_of(models: Models, logits: Float[Array, "B C"], hidden: Float[Array, "B D"]) -> Drafts:
    """Drafts from one head's logits, the same for every node of a level."""
    vocab = models.target.config.vocab_size
    return drafts_of(models.draft.draft_vocabulary, vocab, logits[:, None], hidden[:, None])
