"""A smaller LLaMA with the target's tokens as drafter (Leviathan et al., arXiv:2211.17192).

Its vocabulary may be padded to another size than the target's. It then drafts the ids that both have, and embeds
target ids past its table as the table's last row.
"""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, positions, slots_of
from jaxspec.decoding.tree import DraftTree, Frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import drafts_of, size_of, to_mask, with_lm_head
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, forward
from jaxspec.model.quantization import KINDS, quantized


@chex.dataclass(frozen=True)
class DraftModelState:
    """The draft model's own cache of committed tokens, the root included, and its logits after the root."""

    cache: tuple[kv.KV, ...]
    logits: Float[Array, "B C"]  # over the tokens that it can draft
    hidden: Float[Array, "B E"]  # hidden state that gave the logits
    nodes: tuple[kv.KV, ...] | None = None  # keys and values of this round's nodes; None outside drafting


@final
@dataclasses.dataclass(frozen=True)
class DraftModel(Drafter):
    """A smaller LLaMA with the same vocabulary.

    Its head on disk is a checkpoint like any LLaMA's, unless its LM head was cut to a draft vocabulary.
    """

    name: ClassVar[str] = "draft-model"
    rank: ClassVar[int | None] = 50
    has_head: ClassVar[bool] = True

    def head_for(self, target: LlamaConfig, layers: int = 1) -> HeadShape:
        """The vanilla draft model (VDM) that EDD's paper compares with: by default one layer of the target's shape."""
        return HeadShape(dataclasses.replace(target, num_layers=layers), {"quantize": None})

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> Llama:
        mask, how = shape.settings.get("draft_vocabulary"), shape.settings["quantize"]
        model = with_lm_head(Llama(shape.model, rngs=rngs, dtype=dtype), mask, rngs, dtype)
        return model if how is None else quantized(model, how)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        if shape.settings.get("quantize", "") not in (None, *KINDS):
            raise ValueError(f"must have the setting `quantize`, null or one of {', '.join(KINDS)}")

    def init(self, models: Models, batch: int, cache_len: int) -> DraftModelState:
        config, dtype = models.draft.config, models.draft.dtype
        return DraftModelState(
            cache=kv.allocate(config, batch, cache_len, dtype),
            logits=jnp.zeros((batch, size_of(models.draft.draft_vocabulary, config.vocab_size)), jnp.float32),
            hidden=jnp.zeros((batch, config.hidden_size), dtype),
        )

    def observe(self, models: Models, state: DraftModelState, committed: Committed) -> DraftModelState:
        # The token at `start` may be in the cache already. It is read again, so that position 0 is no special case.
        tokens = jnp.concatenate([committed.token[:, :1], committed.next_token], axis=1)
        batch, width = tokens.shape
        at = committed.start[:, None] + jnp.arange(width)
        out = forward(models.draft, tokens, at, causal_mask(batch, width), state.cache, committed.start)
        root = jnp.take_along_axis(out.hidden, committed.count[:, None, None], axis=1)[:, 0]
        logits = models.draft.logits(root)
        learns = (committed.count > 0)[:, None]
        return DraftModelState(
            cache=kv.append(state.cache, out.nodes, committed.start, after=logits.argmax(-1)),
            logits=jnp.where(learns, logits, state.logits),
            hidden=jnp.where(learns, root, state.hidden),
        )

    def root(
        self, models: Models, state: DraftModelState, prefix: Prefix, tree: DraftTree
    ) -> tuple[Drafts, DraftModelState]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype)
        drafts = _drafts_of(models, state.logits[:, None], state.hidden[:, None])
        return drafts, dataclasses.replace(state, nodes=nodes)

    def expand(
        self, models: Models, state: DraftModelState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, DraftModelState]:
        node = frontier.node
        out = forward(
            models.draft, take(tree.token, node), positions(prefix, take(tree.depth, node)),
            tree_mask(tree, node, root_is_cached=True), state.cache, prefix.length,
            nodes=state.nodes, slots=slots_of(tree, frontier),
        )  # fmt: skip
        drafts = _drafts_of(models, models.draft.logits(out.hidden), out.hidden)
        return drafts, dataclasses.replace(state, nodes=out.nodes)


def _drafts_of(models: Models, logits: Float[Array, "B W C"], hidden: Float[Array, "B W E"]) -> Drafts:
    mask, own, size = models.draft.draft_vocabulary, models.draft.config.vocab_size, models.target.config.vocab_size
    if mask is None and own < size:
        mask = to_mask(range(own), size)
    return drafts_of(mask, size, logits[..., :size], hidden)
