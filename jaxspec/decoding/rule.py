"""The interface of verification rules: how children are proposed, and how the target accepts them, in lossless pairs.

A rule defines both parts, so that no builder can combine a proposal with a verification that does not fit it.

| rule | children of a node | the target accepts |
|---|---|---|
| Greedy | the top k | the child that equals its argmax |
| GumbelCoupling | the top k by log q + g; any of them may be pruned | the child that equals its argmax of log p + g |
| RejectionSampling | k draws without replacement; none may be dropped | min(1, p/q), else the residual max(0, p - q) |
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.drafter import Drafts, for_each, slots_of
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.tree import DraftTree, Frontier


@chex.dataclass(frozen=True)
class Draws:
    """Sampling parameters and random numbers for proposing a level, or for verifying a tree."""

    sampling: Sampling
    keys: Key[Array, " B"]  # keys of this level, or of this round's verification, for independent draws
    noise: Float[Array, "B *P V"]  # Gumbel noise of positions in the text, the same in every round and for every node
    level: Int[Array, ""] | None = None  # depth of the nodes that are expanded; None: a tree is verified


@chex.dataclass(frozen=True)
class Verdict:
    """The target's verdict on a tree."""

    path: Int[Array, "B P"]  # accepted nodes from the root down, padded with the last one; P = depth + 1
    accepted: Int[Array, " B"]  # number of accepted drafts, 0 … P - 1
    next_token: Int[Array, " B"]  # the bonus token, after the path


@chex.dataclass(frozen=True)
class Proposal:
    """C children of each of W expanded nodes, in the order of siblings; `log_prob` is each child's log confidence."""

    token: Int[Array, "B W C"]
    log_prob: Float[Array, "B W C"]
    live: Bool[Array, "B W C"]
    estimated: bool = False  # the first child's `log_prob` is the head's own estimate that it is accepted


Propose = Callable[[int], Proposal]  # C → C children of each node of the frontier; fewer if the vocabulary is smaller


class Rule(abc.ABC):
    """A way to propose children and the matching way to verify them, which together are lossless."""

    keeps_probs: ClassVar[bool]  # whether verification needs the draft distribution q
    may_prune: ClassVar[bool]  # whether nodes may be dropped by their confidence before verification

    def draft_probs(self, sampling: Sampling, drafts: Drafts) -> Float[Array, "B Q support"]:
        """The distribution q that `propose` samples from, over the drafts' candidates. Called only if `keeps_probs`."""
        raise ValueError(f"{type(self).__name__} does not sample children")

    @abc.abstractmethod
    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        """Proposes `count` children for each of `width` nodes. The noise [B V] belongs to the children's position."""

    @abc.abstractmethod
    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        """Verifies a tree of at most `depth` levels by the target's logits after each node.

        The noise [B P V] belongs to the positions after nodes at depth 0, 1, …, P - 1.
        """


def keep_probs(
    tree: DraftTree, frontier: Frontier, probs: Float[Array, "B Q support"], token: Int[Array, "#B #Q support"] | None
) -> DraftTree:
    """Stores q of the expanded nodes in the tree: over candidates with ids `token`, or over the whole vocabulary."""
    assert tree.draft_probs is not None
    batch, width = frontier.node.shape
    rows, node, probs = jnp.arange(batch)[:, None], slots_of(tree, frontier), for_each(probs, width)
    if token is None:
        kept = tree.draft_probs.at[rows, node].set(probs, mode="drop")
    else:  # `add`, not `set`, because padding candidates may repeat an id; the rows were zero
        at = (rows[..., None], node[..., None], for_each(token, width))
        kept = tree.draft_probs.at[at].add(probs, mode="drop")
    return dataclasses.replace(tree, draft_probs=kept)
