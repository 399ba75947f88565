"""Pairs of (feature of token i, token i + 1): the base class of the EAGLE drafters.

A pair has rotary position i. The layer's output for it predicts the feature of token i + 1, and thus the logits of
token i + 2. Keys and values of pairs with the target's features are kept. Those of pairs with predicted features are
dropped after the round. An ablation pairs feature i with its own token i instead (`shifted` of the head).
"""

import abc
import dataclasses

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, last_valid, positions, slots_of
from jaxspec.decoding.tree import NO_PARENT, DraftTree, Frontier, take, tree_mask
from jaxspec.drafters.draft_vocabulary import drafts_of, size_of
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask, in_window, over_cache, visible
from jaxspec.model.rope import rotary


@chex.dataclass(frozen=True)
class PairState:
    """Keys and values of true pairs, and the head's prediction after the root."""

    cache: tuple[kv.KV, ...]  # one layer, one row per pair: one fewer than committed tokens
    logits: Float[Array, "B C"]  # logits after the root, over the tokens that the head can draft
    hidden: Float[Array, "B D"]  # the predicted feature of the root
    nodes: tuple[kv.KV, ...] | None = None  # keys and values of this round's expanded nodes; None outside drafting
    expanded: Int[Array, "B W"] | None = None  # slots of the nodes expanded last, at first the root's
    features: Float[Array, "B W D"] | None = None  # their predicted features


class PairDrafter(Drafter):
    """Drafts with a head that predicts the next feature from a pair.

    The head maps (target, tokens, features, angles, attend) to features and what `attend` keeps. It has `logits`;
    `draft_vocabulary`, a mask or None; `shifted`: whether a pair has the token after the feature's; and `window`: the
    positions that a pair sees, its own included (0: all).
    """

    @abc.abstractmethod
    def features(self, models: Models, committed: Committed) -> Float[Array, "B T D"]:
        """The true features of verified tokens."""

    def init(self, models: Models, batch: int, cache_len: int) -> PairState:
        config, dtype = models.draft.config, models.target.dtype
        tokens = size_of(models.draft.draft_vocabulary, config.vocab_size)
        return PairState(
            cache=kv.allocate(config, batch, cache_len, dtype, num_layers=1),
            logits=jnp.zeros((batch, tokens), jnp.float32),
            hidden=jnp.zeros((batch, config.hidden_size), dtype),
        )

    def observe(self, models: Models, state: PairState, committed: Committed) -> PairState:
        head = models.draft
        at, rows = committed.position, kv.capacity(state.cache)
        seen = visible(causal_mask(*committed.token.shape), committed.start, rows)
        seen = in_window(seen, head.window, at, at, rows) if head.window else seen
        tokens = committed.next_token if head.shifted else committed.token
        angles, (attend,) = rotary(head.config, at), over_cache(seen, state.cache)
        out, new = head(models.target, tokens, self.features(models, committed), angles, attend)
        root = last_valid(out, committed.count)
        logits = head.logits(models.target, root)
        learns = (committed.count > 0)[:, None]
        return PairState(
            cache=kv.append(state.cache, (new,), committed.start, after=logits.argmax(-1)),
            logits=jnp.where(learns, logits, state.logits),
            hidden=jnp.where(learns, root, state.hidden),
        )

    def root(self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, PairState]:
        batch, size = tree.token.shape
        nodes = kv.allocate(models.draft.config, batch, size, state.hidden.dtype, num_layers=1)
        expanded, features = jnp.zeros((batch, 1), jnp.int32), state.hidden[:, None]
        begun = dataclasses.replace(state, nodes=nodes, expanded=expanded, features=features)
        return _drafts_of(models, state.logits[:, None], features), begun

    def widen(self, state: PairState, width: int) -> PairState:
        # Only features of the nodes expanded last are kept, as these are the parents of the next ones. Those of all
        # nodes of a large tree would fill a TPU's fast memory.
        assert state.expanded is not None and state.features is not None, "root comes before widen"
        more = (0, width - state.expanded.shape[1])
        expanded = jnp.pad(state.expanded, ((0, 0), more), constant_values=NO_PARENT)
        return dataclasses.replace(state, expanded=expanded, features=jnp.pad(state.features, ((0, 0), more, (0, 0))))

    def expand(
        self, models: Models, state: PairState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, PairState]:
        assert state.nodes is not None and state.expanded is not None, "root comes before expand"
        assert state.features is not None, "root comes before expand"
        head, node, slots = models.draft, frontier.node, slots_of(tree, frontier)
        parent = take(tree.parent, node)
        place = (state.expanded[:, None] == parent[..., None]).argmax(axis=-1)  # of its parent; any if it is not live
        tokens, before = take(tree.token, node if head.shifted else parent), take(state.features, place)
        at = positions(prefix, take(tree.depth, node)) - 1  # those of the features, one before their tokens
        mask, rows = tree_mask(tree, node, root_is_cached=True), kv.capacity(state.cache)
        seen = visible(mask, prefix.length - 1, rows, slots)
        if head.window:
            seen = in_window(seen, head.window, at, positions(prefix, tree.depth) - 1, rows)
        (attend,) = over_cache(seen, state.cache, state.nodes)
        out, nodes = head(models.target, tokens, before, rotary(head.config, at), attend)
        drafts = _drafts_of(models, head.logits(models.target, out), out)
        return drafts, dataclasses.replace(state, nodes=(nodes,), expanded=slots, features=out)


def _drafts_of(models: Models, logits: Float[Array, "B W C"], hidden: Float[Array, "B W D"]) -> Drafts:
    return drafts_of(models.draft.draft_vocabulary, models.draft.config.vocab_size, logits, hidden)
