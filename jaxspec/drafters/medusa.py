"""Medusa: heads beside the LM head, each of which reads one token further ahead (arXiv:2401.10774, §2.1.1).

All of them read the target's feature at the last position that it verified. The LM head said the root there, so head 0
says the token after the root and head k the one at level k + 1: whatever stands on the path between, which no head
sees. Deeper levels than there are heads get no drafts.

This is Medusa-1, whose target stays frozen. The paper's typical acceptance is not lossless, and is left out.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.checkpoint.heads import check_same_shape, load_head, read_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.tree import take
from jaxspec.model.linear import Linear, linear
from jaxspec.model.mesh_rules import constrain

NAME = "medusa"


class MedusaHead(nnx.Module):
    """One head: a residual block (D → D) and an LM head of its own (D → vocabulary)."""

    def __init__(self, width: int, vocab: int, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.dtype("float32")):
        self.residual = Linear(rngs, (width, width), ("input", "embed"), bias=True, dtype=dtype)
        self.head = Linear(rngs, (width, vocab), ("embed", "vocab"), bias=False, dtype=dtype)


class MedusaHeads(nnx.Module):
    """Weights of all heads for a target with `width` = D, random until loaded or begun."""

    def __init__(self, width: int, vocab: int, *, rngs: nnx.Rngs, heads: int, dtype: jnp.dtype = jnp.dtype("float32")):
        self.heads = nnx.List([MedusaHead(width, vocab, rngs=rngs, dtype=dtype) for _ in range(heads)])

    @staticmethod
    def blank(width: int, vocab: int, heads: int) -> "MedusaHeads":
        """Heads whose weights do not matter: a shape to restore others into."""
        return MedusaHeads(width, vocab, rngs=nnx.Rngs(0), heads=heads)


@chex.dataclass(frozen=True)
class MedusaState:
    """The target's feature at the last verified position."""

    feature: Float[Array, "B D"]


def predict(head: MedusaHead, x: Float[Array, "*B D"]) -> tuple[Float[Array, "*B V"], Float[Array, "*B D"]]:
    """Logits, float32, and the hidden states that gave them: x + SiLU(W x + b)."""
    whole = lambda x: constrain(x, "batch", *[None] * (x.ndim - 1))  # else chips that each have it share it out
    hidden = whole(x + jax.nn.silu(whole(linear(x, head.residual))))
    return linear(hidden, head.head).astype(jnp.float32), hidden


def abstain(vocab_size: int, x: Float[Array, "B D"]) -> tuple[Float[Array, "B V"], Float[Array, "B D"]]:
    """The head that proposes nothing."""
    return jnp.full((x.shape[0], vocab_size), -jnp.inf), x


@dataclasses.dataclass(frozen=True)
class Medusa:
    """Drafts level k + 1 of the tree with head k, which runs when the level is drafted: a row that stops saves it."""

    abstains: ClassVar[bool] = True

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> MedusaHeads:
        """Restores the heads at `path`; raises CheckpointError where they were trained for another target."""
        config = read_head(path, NAME)
        check_same_shape(path, config.model, target.config.model)
        width, vocab = config.model.hidden_size, config.model.vocab_size
        return load_head(path, lambda: MedusaHeads.blank(width, vocab, **config.settings), dtype, target.mesh)

    def taps(self, models) -> tuple[int, ...]:
        return ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> MedusaState:
        config, dtype = models.target.config, models.target.norm[...].dtype
        return MedusaState(feature=jnp.zeros((batch, config.hidden_size), dtype))

    def grow(self, state, rows) -> MedusaState:
        return state

    def observe(self, models, state, committed) -> MedusaState:
        last = take(committed.hidden, jnp.maximum(committed.count - 1, 0)[:, None])[:, 0]
        return MedusaState(feature=jnp.where((committed.count > 0)[:, None], last, state.feature))

    def root(self, models, state, prefix, tree):
        return *predict(models.draft.heads[0], state.feature), state

    def expand(self, models, state, prefix, tree, frontier):
        # A switch and not a slice of stacked weights, which would be copied. Past the last head it takes the last one.
        heads = [partial(predict, head) for head in models.draft.heads]
        nothing = partial(abstain, models.target.config.vocab_size)
        found = jax.lax.switch(frontier.level, [*heads, nothing], state.feature)
        width = frontier.node.shape[1]
        logits, hidden = (jnp.broadcast_to(x[:, None], (x.shape[0], width, x.shape[1])) for x in found)
        return logits, hidden, state
