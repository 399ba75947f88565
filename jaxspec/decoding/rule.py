"""How a tree's children are proposed and how the target accepts them: the pairs of the two that are lossless.

A rule owns both halves, so that no builder can verify children in a way that does not fit how they came about.

| rule | children of a node | the target accepts |
|---|---|---|
| Greedy | the top k | the child that equals its argmax |
| Candidates | the top k; may be pruned or sorted by anything | the child that equals its own draw |
| RejectionSampling | k draws without replacement; none may be dropped | min(1, p/q), else the residual max(0, p - q) |
"""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import chex
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.tree import DraftTree


@chex.dataclass(frozen=True)
class Verdict:
    """What the target accepted of a tree."""

    path: Int[Array, "B P"]  # node ids from the root down, padded with the last accepted node; P = depth + 1
    accepted: Int[Array, " B"]  # accepted drafts, 0 … P - 1
    next_token: Int[Array, " B"]  # the bonus token, which follows the path


@chex.dataclass(frozen=True)
class Proposal:
    """C children for each of W expanded nodes."""

    token: Int[Array, "B W C"]
    log_prob: Float[Array, "B W C"]
    live: Bool[Array, "B W C"]
    probs: Float[Array, "B W V"] | None  # q they were drawn from; None for candidates


Propose = Callable[[Array, int], Proposal]  # (draft logits [B W V], C) -> C children for each node


@runtime_checkable
class Rule(Protocol):
    """A way to propose children and a way to verify them that together leave the target's text unchanged."""

    keeps_probs: ClassVar[bool]  # whether verification needs q
    may_prune: ClassVar[bool]  # whether nodes may be dropped by their own value before verification

    def propose(
        self, keys: Key[Array, " B"], sampling: Sampling, logits: Float[Array, "B W V"], count: int
    ) -> Proposal: ...

    def verify(
        self, keys: Key[Array, " B"], sampling: Sampling, tree: DraftTree, logits: Float[Array, "B N V"], depth: int
    ) -> Verdict: ...
