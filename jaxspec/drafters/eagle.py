"""EAGLE: one decoder layer predicts the target's next feature, and the target's LM head reads it (arXiv:2401.15077).

A pair is (feature of token i, token i + 1), at rotary position i; from it comes the feature of token i + 1, and so the
logits of token i + 2. What is known of the text are pairs of true features: their keys and values are kept, while
those of pairs with predicted features are dropped after the round.
"""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import (
    FLOAT32,
    Committed,
    Drafter,
    HeadShape,
    Models,
    Prefix,
    last_valid,
    positions,
    slots_of,
)
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.tree import DraftTree, Frontier, take
from jaxspec.decoding.tree_mask import tree_mask
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import attend_to, causal_mask
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import Linear, linear
from jaxspec.model.llama import STREAM, Layer, Llama, decoder_layer, look_up, unembed
from jaxspec.model.mesh_rules import constrain


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
        dtype: jnp.dtype = FLOAT32,
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
    token = look_up(target.embedding if head.embedding is None else head.embedding, tokens)
    pair = constrain(jnp.concatenate([token.astype(features.dtype), features], axis=-1), *STREAM)
    return constrain(linear(pair, head.fc), *STREAM)


@final
@dataclasses.dataclass(frozen=True)
class Eagle(Drafter):
    """Drafts on the target's features, with one trained decoder layer (EAGLE)."""

    name: ClassVar[str] = "eagle"
    rank: ClassVar[int | None] = 10
    has_head: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, bias: bool = False) -> HeadShape:
        """One layer of the target's shape, which for a mixture of experts has none.

        Args:
            bias: of `fc`; some published heads have one.
        """
        layer = dataclasses.replace(target.without_experts, num_layers=1)
        return HeadShape(layer, {"bias": bias, "own_embedding": False})

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> EagleHead:
        return EagleHead(shape.model, rngs=rngs, dtype=dtype, **shape.settings)

    def init(self, models: Models, batch: int, rows: int) -> EagleState:
        config, dtype = models.draft.config, models.target.norm[...].dtype
        return EagleState(
            cache=kv.allocate(config, batch, rows, dtype, num_layers=1),
            logits=jnp.zeros((batch, config.vocab_size), jnp.float32),
            hidden=jnp.zeros((batch, config.hidden_size), dtype),
            nodes=None,
            features=None,
        )

    def observe(self, models: Models, state: EagleState, committed: Committed) -> EagleState:
        head: EagleHead = models.draft
        batch, width = committed.token.shape
        x = fuse(head, models.target, committed.next_token, committed.hidden)
        at, mask = committed.position, causal_mask(batch, width)
        attend = attend_to(head.config, at, mask, committed.start, kv.capacity(state.cache))
        out, new = decoder_layer(head.layer, head.config, x, attend, state.cache[0], None)
        root = last_valid(out, committed.count)
        logits = unembed(models.target, root)
        learns = (committed.count > 0)[:, None]
        return EagleState(
            cache=kv.append(state.cache, (new,), committed.start, after=logits.argmax(-1)),
            logits=jnp.where(learns, logits, state.logits),
            hidden=jnp.where(learns, root, state.hidden),
            nodes=None,
            features=None,
        )

    def root(self, models: Models, state: EagleState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, EagleState]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype, num_layers=1)
        features = jnp.zeros((batch, size, state.hidden.shape[-1]), state.hidden.dtype).at[:, 0].set(state.hidden)
        drafts = Drafts(logits=state.logits[:, None], hidden=state.hidden[:, None])
        return drafts, dataclasses.replace(state, nodes=nodes, features=features)

    def expand(
        self, models: Models, state: EagleState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, EagleState]:
        assert state.nodes is not None and state.features is not None, "root comes before expand"
        head: EagleHead = models.draft
        node, slots = frontier.node, slots_of(tree, frontier)
        x = fuse(head, models.target, take(tree.token, node), take(state.features, take(tree.parent, node)))
        at, mask = positions(prefix, take(tree.depth, node)) - 1, tree_mask(tree, node, root_is_cached=True)
        attend = attend_to(head.config, at, mask, prefix.length - 1, kv.capacity(state.cache), slots)
        out, nodes = decoder_layer(head.layer, head.config, x, attend, state.cache[0], state.nodes[0])
        rows = jnp.arange(node.shape[0])[:, None]
        features = state.features.at[rows, slots].set(out, mode="drop")
        drafts = Drafts(logits=unembed(models.target, out), hidden=out)
        return drafts, dataclasses.replace(state, nodes=(nodes,), features=features)
