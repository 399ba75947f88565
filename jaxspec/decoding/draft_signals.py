"""The signals that controllers receive after each drafted level."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafts import Drafts, log_top, of_node
from jaxspec.decoding.tree import DraftTree, Frontier, take


@chex.dataclass(frozen=True)
class DraftSignals:
    """Inputs of a controller after a drafted level, along each row's most confident path to that level."""

    level: Int[Array, ""]  # depth of the newest nodes, from 1
    drafted: Bool[Array, " B"]  # whether the row has nodes of this level
    active: Bool[Array, " B"]  # whether the builder would expand any of them
    top_prob: Float[Array, " B"]  # largest probability in the newest node's distribution
    token_prob: Float[Array, " B"]  # probability of the newest node's token
    log_confidence: Float[Array, " B"]  # log confidence of the path to the newest node
    log_coverage: Float[Array, " B"]  # log of the sum of the level's confidences: that any of its nodes is accepted
    draft_hidden: Float[Array, "B E"] | None  # hidden state from which the newest node was drafted; None: there is none
    target_hidden: Float[Array, "B D"]  # the target's feature at the last verified position


def draft_signals(
    tree: DraftTree, newest: Frontier, expanded: Frontier, drafts: Drafts, feature: Float[Array, "B D"]
) -> DraftSignals:
    """The signals along each row's most confident path to the newest level.

    Args:
        newest: the newest nodes that the builder would expand.
        expanded: the nodes of `drafts`.
        feature: the target's feature at the last verified position.
    """
    at_level = tree.live & (tree.depth == newest.level)
    tip = jnp.where(at_level, tree.log_confidence, -jnp.inf).argmax(axis=1)[:, None]
    parent = take(tree.parent, tip)
    slot = (expanded.node == parent).argmax(axis=1)[:, None]
    confidence = take(tree.log_confidence, tip)[:, 0]
    return DraftSignals(
        level=newest.level,
        drafted=at_level.any(axis=1),
        active=newest.live.any(axis=1),
        top_prob=jnp.exp(log_top(drafts, slot)),
        token_prob=jnp.exp(confidence - take(tree.log_confidence, parent)[:, 0]),
        log_confidence=confidence,
        log_coverage=jax.nn.logsumexp(tree.log_confidence, axis=1, where=at_level),
        draft_hidden=None if drafts.hidden is None else of_node(drafts.hidden, slot),
        target_hidden=feature,
    )
