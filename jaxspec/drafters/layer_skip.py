"""Draft & Verify: the target drafts for itself and skips some of its blocks (arXiv:2309.08168).

A block is the attention or the MLP of one layer; a skipped block leaves the residual stream unchanged. There are no new
weights: the head on disk only lists the skipped blocks. Drafting reads the target's keys and values of the prefix. Keys
and values of the root and the drafted nodes are dropped after the round.

If many blocks are skipped, the remaining ones can be trained further (Appendix E). They are then stored and draft in
place of the target's blocks. They still read the target's keys and values of the prefix.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, positions, slots_of
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import build_lm_head, drafts_of
from jaxspec.drafters.skip_mask import SkipMask, check_layers, layers_of, skip, spread
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, attend_to
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import rms_norm
from jaxspec.model.llama import Layer, Llama, attention_block, embed, lm_head, mlp_block, unembed

SEARCHED = (0.6, 0.3)
"""Shares of attention and of MLP blocks that Draft & Verify's search skips in LLaMA-2-13B (arXiv:2309.08168, appendix
C: 24 and 12 of 40). They serve for targets without a search. The cost does not depend on which blocks are skipped."""


class KeptBlocks(nnx.Module):
    """Trained weights of the blocks that a skip set keeps, each with its norm, and of the final norm.

    Parameters have the names of the target's. Embedding and LM head are the target's.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, skips: SkipMask, dtype: jnp.dtype = FLOAT32):
        self.config, self.skips = config, skips
        layers = [Layer(rngs, config, dtype) for _ in range(config.num_layers)]
        for layer, no_attention, no_mlp in zip(layers, skips.attention, skips.mlp, strict=True):
            if no_attention:
                del layer.attention, layer.attention_norm
            if no_mlp:
                del layer.mlp, layer.mlp_norm
        self.layers = nnx.List(layers)
        self.norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",))


class WithDraftVocabulary(nnx.Module):
    """A skip set, with or without trained weights, and the draft vocabulary's columns of the target's LM head."""

    def __init__(
        self,
        blocks: SkipMask | KeptBlocks,
        config: LlamaConfig,
        *,
        rngs: nnx.Rngs,
        draft_vocabulary: str,
        dtype: jnp.dtype = FLOAT32,
    ):
        self.blocks, self.draft_vocabulary = blocks, draft_vocabulary
        self.head = build_lm_head(config.hidden_size, draft_vocabulary, config.vocab_size, rngs, dtype)


@chex.dataclass(frozen=True)
class LayerSkipState:
    """Keys and values of this round's root and expanded nodes, one KV for each layer, skipped or not; None outside
    drafting."""

    nodes: tuple[kv.KV, ...] | None


def unless(skipped: bool | Array, block: Callable[..., tuple], *stream: Any) -> tuple:
    """block(*stream), or the stream itself if skipped. A bool decides at trace time, an array at run time."""
    if isinstance(skipped, bool):
        return stream if skipped else block(*stream)
    return jax.lax.cond(skipped, lambda *stream: stream, block, *stream)


def run_layer(
    layer: Layer,
    config: LlamaConfig,
    skipped: tuple[bool | Array, bool | Array],
    x: Float[Array, "B W D"],
    attend: Attend,
    prefix: kv.KV,
    nodes: kv.KV,
) -> tuple[Float[Array, "B W D"], kv.KV]:
    """One layer on the residual stream; `skipped` says whether its attention and its MLP are skipped.

    `prefix` and `nodes` are this layer's keys and values.
    """
    no_attention, no_mlp = skipped
    x, nodes = unless(no_attention, lambda x, nodes: attention_block(layer, config, x, attend, prefix, nodes), x, nodes)
    (x,) = unless(no_mlp, lambda x: (mlp_block(layer, config, x),), x)
    return x, nodes


@final
@dataclasses.dataclass(frozen=True)
class LayerSkip(Drafter):
    """Draft & Verify: the target without some of its blocks.

    `models.draft` is a skip mask, static or traced, or the trained blocks that a mask keeps; either may have a draft
    vocabulary.
    """

    name: ClassVar[str] = "layer-skip"
    rank: ClassVar[int | None] = 60
    has_head: ClassVar[bool] = True

    def head_for(
        self, target: LlamaConfig, attention_share: float = SEARCHED[0], mlp_share: float = SEARCHED[1]
    ) -> HeadShape:
        """A skip set with these shares of the blocks, evenly spread, without weights."""
        skips = spread(target.num_layers, attention_share, mlp_share)
        return HeadShape(target, layers_of(skips))

    def build_head(
        self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32
    ) -> SkipMask | KeptBlocks | WithDraftVocabulary:
        config, mask = shape.model, shape.settings.get("draft_vocabulary")
        blocks = skip(config.num_layers, shape.settings["attention"], shape.settings["mlp"])
        if shape.settings.get("trained", False):
            blocks = KeptBlocks(config, rngs=rngs, skips=blocks, dtype=dtype)
        if mask is None:
            return blocks
        return WithDraftVocabulary(blocks, config, rngs=rngs, draft_vocabulary=mask, dtype=dtype)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if (theirs := shape.model.num_layers) != target.num_layers:
            raise ValueError(f"is for a target of {theirs} layers, and this one has {target.num_layers}")
        check_layers(dict(shape.settings), target.num_layers)

    def init(self, models: Models, batch: int, rows: int) -> LayerSkipState:
        return LayerSkipState(nodes=None)

    def observe(self, models: Models, state: LayerSkipState, committed: Committed) -> LayerSkipState:
        return LayerSkipState(nodes=None)

    def root(
        self, models: Models, state: LayerSkipState, prefix: Prefix, tree: DraftTree
    ) -> tuple[Drafts, LayerSkipState]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.target.config, batch, size, models.target.norm[...].dtype)
        return self.expand(models, LayerSkipState(nodes=nodes), prefix, tree, root_frontier(batch))

    def expand(
        self, models: Models, state: LayerSkipState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, LayerSkipState]:
        assert state.nodes is not None, "root comes before expand"
        target: Llama = models.target
        config, node, draft, drafted = target.config, frontier.node, models.draft, None
        if isinstance(draft, WithDraftVocabulary):
            draft, drafted = draft.blocks, draft.draft_vocabulary
        blocks, skips = (draft, draft.skips) if isinstance(draft, KeptBlocks) else (target, draft)
        at, mask, rows = positions(prefix, take(tree.depth, node)), tree_mask(tree, node), kv.capacity(prefix.cache)
        attend = attend_to(config, at, mask, prefix.length - 1, rows, slots_of(tree, frontier))
        x, nodes = embed(target, take(tree.token, node)), []
        for i, (layer, cache, mine) in enumerate(zip(blocks.layers, prefix.cache, state.nodes, strict=True)):
            x, new = run_layer(layer, config, (skips.attention[i], skips.mlp[i]), x, attend, cache, mine)
            nodes.append(new)
        hidden = rms_norm(x, blocks.norm[...], config.norm_eps)
        logits = unembed(target, hidden) if drafted is None else lm_head(hidden, models.draft.head)
        return drafts_of(drafted, config.vocab_size, logits, hidden), LayerSkipState(nodes=tuple(nodes))
