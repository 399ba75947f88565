"""Pairs of (feature of token i, token i + 1): state and forward passes that the EAGLE drafters share.

A pair has rotary position i. The layer's output for it predicts the feature of token i + 1, and thus the logits of
token i + 2. Keys and values of pairs with the target's features are kept. Those of pairs with predicted features are
dropped after the round. An ablation pairs feature i with its own token i instead (`PairHead.shifted`).
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import Committed, Drafts, Models, Prefix, last_valid, positions, slots_of
from jaxspec.decoding.tree import NO_PARENT, DraftTree, Frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import drafts_of, size_of
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, causal_mask, over_cache, visible
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Angles, Llama
from jaxspec.model.rope import rotary


@chex.dataclass(frozen=True)
class PairState:
    """Keys and values of true pairs, and the head's prediction after the root."""

    cache: tuple[kv.KV, ...]  # one layer, one row per pair: one fewer than committed tokens
    logits: Float[Array, "B C"]  # logits after the root, over the tokens that the head can draft
    hidden: Float[Array, "B D"]  # the predicted feature of the root
    nodes: tuple[kv.KV, ...] | None  # keys and values of this round's expanded nodes; None outside drafting
    expanded: Int[Array, "B W"] | None  # slots of the nodes expanded last, at first the root's; None outside drafting
    features: Float[Array, "B W D"] | None  # their predicted features


@runtime_checkable
class PairHead(Protocol):
    """What the heads of the EAGLE drafters have in common.

    Attributes:
        config: shape of its layer.
        draft_vocabulary: mask of the tokens that it can draft; None: all.
        shifted: whether the token of a pair is the one after its feature's token; false: the feature's own token.
    """

    config: LlamaConfig

    @property
    def draft_vocabulary(self) -> str | None: ...

    @property
    def shifted(self) -> bool: ...

    def __call__(
        self,
        target: Llama,
        tokens: Int[Array, "B W"],
        features: Float[Array, "B W D"],
        angles: Angles,
        attend: Attend,
    ) -> tuple[Float[Array, "B W D"], Any]:
        """The predicted feature after each pair, and what `attend` keeps."""
        ...

    def logits(self, target: Llama, features: Float[Array, "*B D"]) -> Float[Array, "*B C"]:
        """Logits of the tokens that the head can draft, float32, from predicted features."""
        ...


def empty(head: PairHead, batch: int, cache_len: int, dtype: jnp.dtype) -> PairState:
    """State before the first pair."""
    tokens = size_of(head.draft_vocabulary, head.config.vocab_size)
    return PairState(
        cache=kv.allocate(head.config, batch, cache_len, dtype, num_layers=1),
        logits=jnp.zeros((batch, tokens), jnp.float32),
        hidden=jnp.zeros((batch, head.config.hidden_size), dtype),
        nodes=None,
        expanded=None,
        features=None,
    )


def observe(models: Models, state: PairState, committed: Committed, features: Float[Array, "B T D"]) -> PairState:
    """Adds the pairs of newly committed tokens, with their true features, to the cache."""
    head: PairHead = models.draft
    seen = visible(causal_mask(*committed.token.shape), committed.start, kv.capacity(state.cache))
    tokens = committed.next_token if head.shifted else committed.token
    angles, (attend,) = rotary(head.config, committed.position), over_cache(seen, state.cache)
    out, new = head(models.target, tokens, features, angles, attend)
    root = last_valid(out, committed.count)
    logits = head.logits(models.target, root)
    learns = (committed.count > 0)[:, None]
    return PairState(
        cache=kv.append(state.cache, (new,), committed.start, after=logits.argmax(-1)),
        logits=jnp.where(learns, logits, state.logits),
        hidden=jnp.where(learns, root, state.hidden),
        nodes=None,
        expanded=None,
        features=None,
    )


def root(models: Models, state: PairState, tree: DraftTree) -> tuple[Drafts, PairState]:
    """Drafts after the root, and the state with room for the pairs of a tree's nodes."""
    batch, size = tree.token.shape
    nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype, num_layers=1)
    begun = dataclasses.replace(
        state, nodes=nodes, expanded=jnp.zeros((batch, 1), jnp.int32), features=state.hidden[:, None]
    )
    return _drafts_of(models.draft, state.logits[:, None], state.hidden[:, None]), begun


def widen(state: PairState, width: int) -> PairState:
    """The state after the root's drafts, for frontiers of W = `width` nodes.

    Only features of the nodes expanded last are kept, as these are the parents of the next ones. Those of all nodes of
    a large tree would fill a TPU's fast memory.
    """
    assert state.expanded is not None and state.features is not None, "root comes before widen"
    more = (0, width - state.expanded.shape[1])
    return dataclasses.replace(
        state,
        expanded=jnp.pad(state.expanded, ((0, 0), more), constant_values=NO_PARENT),
        features=jnp.pad(state.features, ((0, 0), more, (0, 0))),
    )


def expand(
    models: Models, state: PairState, prefix: Prefix, tree: DraftTree, frontier: Frontier
) -> tuple[Drafts, PairState]:
    """Drafts after each node of the frontier, and the new state."""
    assert state.nodes is not None and state.expanded is not None, "root comes before expand"
    assert state.features is not None, "root comes before expand"
    head: PairHead = models.draft
    node, slots = frontier.node, slots_of(tree, frontier)
    parent = take(tree.parent, node)
    place = (state.expanded[:, None] == parent[..., None]).argmax(axis=-1)  # of a node's parent; any if it is not live
    tokens, before = take(tree.token, node if head.shifted else parent), take(state.features, place)
    at = positions(prefix, take(tree.depth, node)) - 1  # those of the features, one before their tokens
    mask = tree_mask(tree, node, root_is_cached=True)
    seen = visible(mask, prefix.length - 1, kv.capacity(state.cache), slots)
    (attend,) = over_cache(seen, state.cache, state.nodes)
    out, nodes = head(models.target, tokens, before, rotary(head.config, at), attend)
    drafts = _drafts_of(head, head.logits(models.target, out), out)
    return drafts, dataclasses.replace(state, nodes=(nodes,), expanded=slots, features=out)


def _drafts_of(head: PairHead, logits: Float[Array, "B W C"], hidden: Float[Array, "B W D"]) -> Drafts:
    return drafts_of(head.draft_vocabulary, head.config.vocab_size, logits, hidden)
