"""Draft & Verify: the target drafts for itself and skips some of its blocks (arXiv:2309.08168).

A block is the attention or the MLP of one layer; a skipped block leaves the residual stream unchanged. There are no new
weights: the head on disk only lists the skipped blocks. Drafting reads the target's keys and values of the prefix. Keys
and values of the root and the drafted nodes are dropped after the round.

If many blocks are skipped, the remaining ones can be trained further (Appendix E). They are then stored and draft in
place of the target's blocks. They still read the target's keys and values of the prefix.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, positions, slots_of
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import build_lm_head, drafts_of
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, over_cache, visible
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import RMSNorm
from jaxspec.model.llama import Angles, Layer, Llama
from jaxspec.model.rope import rotary

SEARCHED = (0.6, 0.3)
"""Shares of attention and of MLP blocks that Draft & Verify's search skips in LLaMA-2-13B (arXiv:2309.08168, appendix
C: 24 and 12 of 40). They serve for targets without a search. The cost does not depend on which blocks are skipped."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SkipMask:
    """Whether each of L layers skips its attention, and its MLP. It is static: each set has its own program."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]

    def traced(self) -> "TracedSkipMask":
        return TracedSkipMask(attention=jnp.asarray(self.attention), mlp=jnp.asarray(self.mlp))


@chex.dataclass(frozen=True)
class TracedSkipMask:
    """A `SkipMask` as arrays: one program serves all sets that a search tries."""

    attention: Bool[Array, " L"]
    mlp: Bool[Array, " L"]


def skip(num_layers: int, attention: Collection[int], mlp: Collection[int]) -> SkipMask:
    """The set that skips the attention and the MLP of these layers, counted from 0."""
    flags = lambda skipped: tuple(i in skipped for i in range(num_layers))
    return SkipMask(attention=flags(attention), mlp=flags(mlp))


def layers_of(skips: SkipMask) -> dict[str, list[int]]:
    """The layers whose attention, and whose MLP, is skipped."""
    numbers = lambda switches: [i for i, skipped in enumerate(switches) if skipped]
    return {"attention": numbers(skips.attention), "mlp": numbers(skips.mlp)}


class KeptBlocks(nnx.Module):
    """The blocks that a skip set keeps, trained further, with their norms and the final norm, named as the target's."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, skips: SkipMask, dtype: jnp.dtype = FLOAT32):
        self.config, self.skips = config, skips
        layers = [Layer(rngs, config, dtype) for _ in range(config.num_layers)]
        for layer, no_attention, no_mlp in zip(layers, skips.attention, skips.mlp, strict=True):
            if no_attention:
                del layer.attention, layer.attention_norm
            if no_mlp:
                del layer.mlp, layer.mlp_norm
        self.layers = nnx.List(layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)


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
        self.lm_head = build_lm_head(config.hidden_size, draft_vocabulary, config.vocab_size, rngs, dtype)


Nodes = tuple[kv.KV, ...]
"""The state: keys and values of this round's root and expanded nodes, one KV for each layer, skipped or not."""


def unless(skipped: bool | Array, block: Callable[..., tuple], *stream: Any) -> tuple:
    """block(*stream), or the stream itself if skipped. A bool decides at trace time, an array at run time."""
    if isinstance(skipped, bool):
        return stream if skipped else block(*stream)
    return jax.lax.cond(skipped, lambda *stream: stream, block, *stream)


def draft(
    target: Llama,
    blocks: Llama | KeptBlocks,
    skips: SkipMask | TracedSkipMask,
    tokens: Int[Array, "B W"],
    angles: Angles,
    attends: Sequence[Attend],
    nodes: Sequence[Any],
) -> tuple[Float[Array, "B W D"], tuple[Any, ...]]:
    """The target's features if it skips some blocks, and what the attention of each layer keeps.

    Args:
        blocks: the target itself, or the trained blocks that draft in its place.
        nodes: what a layer keeps if its attention is skipped.
    """
    x, kept = target.embed(tokens), []
    for i, (layer, attend, old) in enumerate(zip(blocks.layers, attends, nodes, strict=True)):

        def mix(x, _, layer=layer, attend=attend):
            return layer.attention_block(x, angles, attend)

        x, new = unless(skips.attention[i], mix, x, old)
        (x,) = unless(skips.mlp[i], lambda x, layer=layer: (layer.mlp_block(x),), x)
        kept.append(new)
    return blocks.norm(x), tuple(kept)


@final
@dataclasses.dataclass(frozen=True)
class LayerSkip(Drafter):
    """Draft & Verify: the target without some of its blocks.

    `models.draft` is a skip mask or the trained blocks that it keeps; either may have a draft vocabulary.
    """

    name: ClassVar[str] = "layer-skip"
    rank: ClassVar[int | None] = 60
    has_head: ClassVar[bool] = True

    def head_for(
        self, target: LlamaConfig, attention_share: float = SEARCHED[0], mlp_share: float = SEARCHED[1]
    ) -> HeadShape:
        """A skip set with these shares of the blocks, evenly spread, without weights."""
        layers = range(target.num_layers)
        chosen = lambda share: [i for i in layers if int((i + 1) * share) > int(i * share)]
        return HeadShape(target, {"attention": chosen(attention_share), "mlp": chosen(mlp_share)})

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
        settings = {"trained": False, "draft_vocabulary": None, **shape.settings}
        are_layers = lambda value: isinstance(value, list) and all(type(i) is int and 0 <= i < theirs for i in value)
        lists = [settings.get(name) for name in ("attention", "mlp")]
        if len(settings) != 4 or not all(map(are_layers, lists)) or type(settings["trained"]) is not bool:
            raise ValueError(
                f"must have the settings `attention` and `mlp`, lists of layers from 0 to {theirs - 1}, and `trained` "
                f"where it has weights, and has {dict(shape.settings)}"
            )

    def observe(self, models: Models, state: Nodes | tuple[()], committed: Committed) -> tuple[()]:
        return ()

    def root(self, models: Models, state: tuple[()], prefix: Prefix, tree: DraftTree) -> tuple[Drafts, Nodes]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.target.config, batch, size, models.target.dtype)
        return self.expand(models, nodes, prefix, tree, root_frontier(batch))

    def expand(
        self, models: Models, state: Nodes, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, Nodes]:
        target: Llama = models.target
        config, node, head, lm_head, drafted = target.config, frontier.node, models.draft, None, None
        if isinstance(head, WithDraftVocabulary):
            head, lm_head, drafted = head.blocks, head.lm_head, head.draft_vocabulary
        blocks, skips = (head, head.skips) if isinstance(head, KeptBlocks) else (target, head)
        mask, slots = tree_mask(tree, node), slots_of(tree, frontier)
        attends = over_cache(visible(mask, prefix.length - 1, kv.capacity(prefix.cache), slots), prefix.cache, state)
        angles = rotary(config, positions(prefix, take(tree.depth, node)))
        hidden, nodes = draft(target, blocks, skips, take(tree.token, node), angles, attends, state)
        return drafts_of(drafted, config.vocab_size, target.logits(hidden, lm_head), hidden), nodes
