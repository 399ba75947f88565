"""How a tree's children are proposed and how the target accepts them: the pairs of the two that are lossless.

A rule owns both halves, so that no builder can verify children in a way that does not fit how they came about.

| rule | children of a node | the target accepts |
|---|---|---|
| Greedy | the k likeliest | the child that equals its argmax |
| Candidates | the k likeliest; may be pruned or sorted by anything | the child that equals its own draw |
| Sampled | k draws without replacement; none may be dropped | min(1, p/q), else the residual max(0, p - q) |
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.sampling import Sampling, draw, fold, gumbel, likeliest_token, probabilities
from jaxspec.tree import DraftTree, path_to


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


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Temperature 0: the text of plain greedy decoding."""

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, keys, sampling, logits, count) -> Proposal:
        return likeliest(logits, count)

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        return follow(tree, likeliest_token(logits), depth)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Deterministic children: draw the target's own token at every node and follow it while it is among the children.

    The same in distribution as accepting each child x with p(x) and renormalising p without x after a rejection, since
    that too accepts x with probability p(x) and otherwise draws from what is left. Lossless for any set of distinct
    candidates, however it was found, pruned or sorted.
    """

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, keys, sampling, logits, count) -> Proposal:
        return likeliest(logits / jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)[:, None, None], count)

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        return follow(tree, draw(keys, probabilities(logits, sampling)), depth)


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Children drawn without replacement, verified by multi-round speculative sampling (EAGLE, Algorithm 1).

    Child after child, in the order drawn: accept with min(1, p/q); else p becomes the normalised residual
    max(0, p - q) and q loses the child and is renormalised.
    """

    keeps_probs: ClassVar[bool] = True
    may_prune: ClassVar[bool] = False

    def propose(self, keys, sampling, logits, count) -> Proposal:
        count = min(count, logits.shape[-1])
        hot = (sampling.temperature > 0)[:, None, None]
        # A row at temperature 0 may draft by any q: the target's distribution is one-hot, so verification stays exact.
        soft = dataclasses.replace(sampling, temperature=jnp.where(sampling.temperature > 0, sampling.temperature, 1.0))
        probs = probabilities(logits, soft)
        noise = jnp.where(hot, gumbel(keys, logits.shape[1:]), 0.0)
        scores, token = jax.lax.top_k(jnp.log(probs) + noise, count)
        log_prob = jnp.log(jnp.take_along_axis(probs, token, axis=-1))
        return Proposal(token=token, log_prob=log_prob, live=scores > -jnp.inf, probs=probs)

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        batch, nodes = tree.token.shape
        coin = jax.vmap(lambda key: jax.random.uniform(key, (nodes,)))(fold(keys, 0))
        bonus_keys = fold(keys, 1)
        branching = (tree.parent[:, :, None] == jnp.arange(nodes)).sum(axis=1).max()  # most children of any node

        def visit(carry, step):
            node, on_path = carry
            at = lambda values: jnp.take_along_axis(values, node[:, None, None], axis=1)[:, 0]
            p, q = probabilities(at(logits), sampling), at(tree.draft_probs)
            children = tree.live & (tree.parent == node[:, None]) & on_path[:, None]

            def test(_, carry):
                p, q, children, child = carry
                candidate = children.argmax(axis=1)
                token = jnp.take_along_axis(tree.token, candidate[:, None], axis=1)
                of = lambda values, index: jnp.take_along_axis(values, index, axis=1)[:, 0]
                open_ = children.any(axis=1) & (child < 0)
                accept = open_ & (of(coin, candidate[:, None]) * of(q, token) < of(p, token))
                reject = (open_ & ~accept)[:, None]
                p, q = jnp.where(reject, residual(p, q), p), jnp.where(reject, without(q, token), q)
                children = children & (jnp.arange(nodes) != candidate[:, None])
                return p, q, children, jnp.where(accept, candidate, child)

            none = jnp.full((batch,), -1)
            p, _, _, child = jax.lax.fori_loop(0, branching, test, (p, q, children, none))
            token = draw(fold(bonus_keys, step), p)
            found = on_path & (child >= 0)
            node = jnp.where(found, child, node)
            return (node, found), (node, found, token)

        start = (jnp.zeros((batch,), tree.parent.dtype), jnp.ones((batch,), bool))
        _, (reached, found, bonus) = jax.lax.scan(visit, start, jnp.arange(depth + 1))
        accepted = found.sum(axis=0, dtype=jnp.int32)
        path = jnp.concatenate([jnp.zeros((batch, 1), jnp.int32), reached[:depth].T.astype(jnp.int32)], axis=1)
        return Verdict(path=path, accepted=accepted, next_token=jnp.take_along_axis(bonus, accepted[None], axis=0)[0])


def likeliest(logits: Float[Array, "B W V"], count: int) -> Proposal:
    """The `count` likeliest tokens of each node (all of them, if the vocabulary is smaller)."""
    log_prob, token = jax.lax.top_k(jax.nn.log_softmax(logits.astype(jnp.float32)), min(count, logits.shape[-1]))
    live = log_prob > -jnp.inf  # false for NaN too: a row of logits that proposes nothing
    return Proposal(token=token, log_prob=log_prob, live=live, probs=None)


def follow(tree: DraftTree, says: Int[Array, "B N"], depth: int) -> Verdict:
    """Goes down from the root while some child is the token that the target says at its parent."""
    nodes = tree.token.shape[1]
    agrees = tree.live & (tree.token == jnp.take_along_axis(says, jnp.maximum(tree.parent, 0), axis=1))
    agrees = agrees.at[:, 0].set(True)
    reached = tree.live & (agrees[:, None, :] | ~tree.ancestors).all(axis=-1)
    last = jnp.where(reached, tree.depth * nodes + jnp.arange(nodes), -1).argmax(axis=1)
    one = lambda values: jnp.take_along_axis(values, last[:, None], axis=1)[:, 0]
    return Verdict(path=path_to(tree, last, depth + 1), accepted=one(tree.depth), next_token=one(says))


def residual(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """max(0, p - q), normalised: what is left for the target to draw from once a draw from q was rejected."""
    return _normalised(jnp.maximum(p - q, 0.0), otherwise=p)


def without(q: Float[Array, "B V"], token: Int[Array, "B 1"]) -> Float[Array, "B V"]:
    """q given that `token` is not drawn again: what the next sibling was drawn from."""
    return _normalised(jnp.where(jnp.arange(q.shape[1]) == token, 0.0, q), otherwise=q)


def _normalised(weight: Float[Array, "B V"], *, otherwise: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """weight / its sum, or `otherwise` where rounding left nothing."""
    total = weight.sum(axis=-1, keepdims=True)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), otherwise)
