"""Pairs of (feature of token i, token i + 1): state and forward passes that the EAGLE drafters share.

A pair has rotary position i. The layer's output for it predicts the feature of token i + 1, and thus the logits of
token i + 2. Keys and values of pairs with the target's features are kept. Those of pairs with predicted features are
dropped after the round. An ablation pairs feature i with its own token i instead (`PairReader.shifted`).
"""

import dataclasses
from collections.abc import Callable

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import Committed, Prefix, last_valid, positions, slots_of
from jaxspec.decoding.tree import NO_PARENT, DraftTree, Frontier, take, tree_mask
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import Attend, attend_to, causal_mask
from jaxspec.model.config import LlamaConfig


@chex.dataclass(frozen=True)
class PairState:
    """Keys and values of true pairs, and the head's prediction after the root."""

    cache: tuple[kv.KV, ...]  # one layer, one row per pair: one fewer than committed tokens
    logits: Float[Array, "B C"]  # logits after the root, over the tokens that the head can draft
    hidden: Float[Array, "B D"]  # the predicted feature of the root
    nodes: tuple[kv.KV, ...] | None  # keys and values of this round's expanded nodes; None outside drafting
    expanded: Int[Array, "B W"] | None  # slots of the nodes expanded last, at first the root's; None outside drafting
    features: Float[Array, "B W D"] | None  # their predicted features


@dataclasses.dataclass(frozen=True)
class PairReader:
    """The functions with which a head reads pairs.

    Attributes:
        config: shape of its layer.
        layer: (tokens [B W], features before them [B W D], `Attend`, cache, nodes) → predicted features [B W D], and
            the nodes with the new keys and values.
        logits: predicted features [*B D] → logits [*B C], float32.
        shifted: whether the token of a pair is the one after its feature's token; false: the feature's own token.
    """

    config: LlamaConfig
    layer: Callable[[Array, Array, Attend, kv.KV, kv.KV | None], tuple[Array, kv.KV]]
    logits: Callable[[Array], Array]
    shifted: bool = True


def empty(config: LlamaConfig, batch: int, rows: int, tokens: int, dtype: jnp.dtype) -> PairState:
    """State before the first pair, for a head with `tokens` tokens in its draft vocabulary."""
    return PairState(
        cache=kv.allocate(config, batch, rows, dtype, num_layers=1),
        logits=jnp.zeros((batch, tokens), jnp.float32),
        hidden=jnp.zeros((batch, config.hidden_size), dtype),
        nodes=None,
        expanded=None,
        features=None,
    )


def observe(reader: PairReader, state: PairState, committed: Committed, features: Float[Array, "B T D"]) -> PairState:
    """Adds the pairs of newly committed tokens, with their true features, to the cache."""
    batch, width = committed.token.shape
    at, mask = committed.position, causal_mask(batch, width)
    attend = attend_to(reader.config, at, mask, committed.start, kv.capacity(state.cache))
    tokens = committed.next_token if reader.shifted else committed.token
    out, new = reader.layer(tokens, features, attend, state.cache[0], None)
    root = last_valid(out, committed.count)
    logits = reader.logits(root)
    learns = (committed.count > 0)[:, None]
    return PairState(
        cache=kv.append(state.cache, (new,), committed.start, after=logits.argmax(-1)),
        logits=jnp.where(learns, logits, state.logits),
        hidden=jnp.where(learns, root, state.hidden),
        nodes=None,
        expanded=None,
        features=None,
    )


def begin(reader: PairReader, state: PairState, tree: DraftTree) -> PairState:
    """The state with room for the pairs of a tree's nodes."""
    batch, size = tree.token.shape
    nodes = kv.allocate(reader.config, batch, size, state.hidden.dtype, num_layers=1)
    root = jnp.zeros((batch, 1), jnp.int32)
    return dataclasses.replace(state, nodes=nodes, expanded=root, features=state.hidden[:, None])


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
    reader: PairReader, state: PairState, prefix: Prefix, tree: DraftTree, frontier: Frontier
) -> tuple[Float[Array, "B W C"], Float[Array, "B W D"], PairState]:
    """Logits after each node of the frontier, the predicted features that gave them, and the new state."""
    assert state.nodes is not None and state.expanded is not None, "root comes before expand"
    assert state.features is not None, "root comes before expand"
    node, slots = frontier.node, slots_of(tree, frontier)
    parent = take(tree.parent, node)
    place = (state.expanded[:, None] == parent[..., None]).argmax(axis=-1)  # of a node's parent; any if it is not live
    tokens, before = take(tree.token, node if reader.shifted else parent), take(state.features, place)
    at, mask = _positions(prefix, tree, node), tree_mask(tree, node, root_is_cached=True)
    attend = attend_to(reader.config, at, mask, prefix.length - 1, kv.capacity(state.cache), slots)
    out, nodes = reader.layer(tokens, before, attend, state.cache[0], state.nodes[0])
    return reader.logits(out), out, dataclasses.replace(state, nodes=(nodes,), expanded=slots, features=out)


def _positions(prefix: Prefix, tree: DraftTree, node: Int[Array, "B W"]) -> Int[Array, "B W"]:
    """Rotary positions of pairs: those of their features, one before their tokens."""
    return positions(prefix, take(tree.depth, node)) - 1
