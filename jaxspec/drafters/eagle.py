"""EAGLE: one decoder layer predicts the target's next feature, and the target's LM head reads it (arXiv:2401.15077).

A pair is (feature of token i, token i + 1), at rotary position i; from it comes the feature of token i + 1, and so the
logits of token i + 2. What is known of the text are pairs of true features: their keys and values are kept, while
those of pairs with predicted features are dropped after the round.
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.checkpoint.heads import check_same_shape, load_head, read_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import attend_to
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import Linear, linear
from jaxspec.model.llama import STREAM, Layer, Llama, decoder_layer, embed, unembed
from jaxspec.model.mesh_rules import constrain

NAME = "eagle"


class EagleHead(nnx.Module):
    """Weights of a head: `fc` (2D → D) and a decoder layer without input norm.

    `embedding` is its own table of tokens, where a published head comes with one that is not the target's; mostly None.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        rngs: nnx.Rngs,
        bias: bool,
        own_embedding: bool = False,
        dtype: jnp.dtype = jnp.dtype("float32"),
    ):
        self.config = config
        width = config.hidden_size
        self.fc = Linear(rngs, (2 * width, width), ("input", "embed"), bias=bias, dtype=dtype)
        self.layer = Layer(rngs, config, dtype, input_norm=False)
        table = nnx.Param(jnp.zeros((config.vocab_size, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if own_embedding else None


@chex.dataclass(frozen=True)
class EagleState:
    """Keys and values of true pairs, and what the head predicts after the root."""

    cache: tuple[kv.KV, ...]  # of one layer, a row a pair: one less than there are committed tokens
    logits: Float[Array, "B V"]
    hidden: Float[Array, "B D"]  # the predicted feature of the root
    nodes: tuple[kv.KV, ...] | None  # of this round's expanded nodes, while drafting
    features: Float[Array, "B N D"] | None  # predicted, of the root and of each expanded node


def fuse(
    head: EagleHead, target: Llama, tokens: Int[Array, "B W"], features: Float[Array, "B W D"]
) -> Float[Array, "B W D"]:
    """The input of the head's layer: fc of (embedding of the token, feature before it), in that order."""
    table = embed(target, tokens) if head.embedding is None else head.embedding[...].at[tokens].get(mode="clip")
    pair = constrain(jnp.concatenate([table.astype(features.dtype), features], axis=-1), *STREAM)
    return constrain(linear(pair, head.fc), *STREAM)


@dataclasses.dataclass(frozen=True)
class Eagle:
    """Drafts on the target's features, with one trained decoder layer (EAGLE)."""

    abstains: ClassVar[bool] = False

    @staticmethod
    def load_head(target: Checkpoint, path: Path, dtype: jnp.dtype) -> EagleHead:
        """Restores the head at `path`; raises CheckpointError where it was trained for another target."""
        config = read_head(path, NAME)
        check_same_shape(path, config.model, target.config.model)
        return load_head(path, lambda: EagleHead(config.model, rngs=nnx.Rngs(0), **config.settings), dtype, target.mesh)

    def taps(self, models) -> tuple[int, ...]:
        return ()

    def reuse(self, state) -> None:
        return None

    def init(self, models, batch, rows) -> EagleState:
        config, dtype = models.draft.config, models.target.norm[...].dtype
        return EagleState(
            cache=kv.allocate(config, batch, rows, dtype, num_layers=1),
            logits=jnp.zeros((batch, config.vocab_size), jnp.float32),
            hidden=jnp.zeros((batch, config.hidden_size), dtype),
            nodes=None,
            features=None,
        )

    def grow(self, state, rows) -> EagleState:
        return dataclasses.replace(state, cache=kv.grow(state.cache, rows))

    def observe(self, models, state, committed) -> EagleState:
        head: EagleHead = models.draft
        batch, width = committed.token.shape
        x = fuse(head, models.target, committed.next_token, committed.hidden)
        positions = committed.start[:, None] + jnp.arange(width)
        causal = jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))
        attend = attend_to(head.config, positions, causal, committed.start, kv.capacity(state.cache))
        out, new = decoder_layer(head.layer, head.config, x, attend, state.cache[0], None)
        root = take(out, jnp.maximum(committed.count - 1, 0)[:, None])[:, 0]
        logits = unembed(models.target, root)
        news = (committed.count > 0)[:, None]
        start = committed.start + jnp.minimum(logits.argmax(-1), 0)  # after the reads, so in place: see cache.py
        return EagleState(
            cache=(kv.append(state.cache[0], new, start),),
            logits=jnp.where(news, logits, state.logits),
            hidden=jnp.where(news, root, state.hidden),
            nodes=None,
            features=None,
        )

    def root(self, models, state, prefix, tree):
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype, num_layers=1)
        features = jnp.zeros((batch, size, state.hidden.shape[-1]), state.hidden.dtype).at[:, 0].set(state.hidden)
        return state.logits, state.hidden, dataclasses.replace(state, nodes=nodes, features=features)

    def expand(self, models, state, prefix, tree, frontier):
        head: EagleHead = models.draft
        node, size = frontier.node, tree.token.shape[1]
        x = fuse(head, models.target, take(tree.token, node), take(state.features, take(tree.parent, node)))
        above = take(tree.ancestors, node) & (jnp.arange(size) > 0)  # the root's pair is in the cache
        positions = prefix.length[:, None] - 2 + take(tree.depth, node)
        slots = jnp.where(frontier.live, node, size)
        attend = attend_to(head.config, positions, above, prefix.length - 1, kv.capacity(state.cache), slots)
        out, nodes = decoder_layer(head.layer, head.config, x, attend, state.cache[0], state.nodes[0])
        rows = jnp.arange(node.shape[0])[:, None]
        features = state.features.at[rows, slots].set(out, mode="drop")
        return unembed(models.target, out), out, dataclasses.replace(state, nodes=(nodes,), features=features)
