"""Temperature 0: the text of plain greedy decoding."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafter import Drafts, for_each, log_mass
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.top_k import top_k
from jaxspec.decoding.tree import DraftTree, path_to


@final
@dataclasses.dataclass(frozen=True)
class Greedy(Rule):
    """Temperature 0: children are the top k, and the one that equals the target's argmax is accepted."""

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        return propose_top_k(drafts, width, count)

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        return follow(tree, argmax(logits), depth)


def propose_top_k(drafts: Drafts, width: int, count: int) -> Proposal:
    """Proposes the C = `count` most probable tokens after each of W = `width` nodes (all, if there are fewer)."""
    logits = drafts.logits.astype(jnp.float32)
    top, rank = top_k(logits, count)
    if drafts.token is None:
        token, log_prob = rank, top - log_sum(logits, top[..., :1]) + log_mass(drafts)
    else:
        token, log_prob = jnp.take_along_axis(drafts.token, rank, axis=-1), top
    live = log_prob > -jnp.inf  # also false for NaN, from a row with only -inf
    token, log_prob, live = (for_each(x, width) for x in (token, log_prob, live))
    if drafts.log_accept is not None:
        log_prob = with_estimate(log_prob, for_each(drafts.log_accept, width)[..., None])
    return Proposal(token=token, log_prob=log_prob, live=live, estimated=drafts.log_accept is not None)


def with_estimate(log_prob: Float[Array, "B W C"], log_accept: Float[Array, "B W 1"]) -> Float[Array, "B W C"]:
    """Confidences of children: the head's own estimate for the first, the rest in the proportions of `log_prob`."""
    first = jnp.minimum(log_prob[..., :1], -1e-6)  # below 0, so that something remains for the others
    rest = log_prob + jnp.log(-jnp.expm1(jnp.minimum(log_accept, -1e-6))) - jnp.log(-jnp.expm1(first))
    return jnp.where(jnp.arange(log_prob.shape[-1]) == 0, log_accept, jnp.minimum(rest, 0.0))


def log_sum(logits: Float[Array, "*B V"], peak: Float[Array, "*B 1"]) -> Float[Array, "*B 1"]:
    """log Σ exp(logits), given the largest logit `peak`. Finding it again is slow on a TPU for bfloat16 logits."""
    return peak + jnp.log(jnp.exp(logits - peak).sum(axis=-1, keepdims=True))


def follow(tree: DraftTree, target_tokens: Int[Array, "B N"], depth: int) -> Verdict:
    """Follows the path from the root while a child equals the target's token after its parent."""
    wanted = jnp.take_along_axis(target_tokens, jnp.maximum(tree.parent, 0), axis=1)
    return go_down(tree, tree.token == wanted, target_tokens, depth)


def go_down(tree: DraftTree, agrees: Bool[Array, "B N"], target_tokens: Int[Array, "B N"], depth: int) -> Verdict:
    """Follows the path from the root while a child agrees. At most one child of a node may agree. The target's token
    after the last node is the bonus token."""
    nodes = tree.token.shape[1]
    agrees = (agrees & tree.live).at[:, 0].set(True)
    reached = tree.live & (agrees[:, None, :] | ~tree.ancestors).all(axis=-1)
    last = jnp.where(reached, tree.depth * nodes + jnp.arange(nodes), -1).argmax(axis=1)
    one = lambda values: jnp.take_along_axis(values, last[:, None], axis=1)[:, 0]
    return Verdict(path=path_to(tree, last, depth + 1), accepted=one(tree.depth), next_token=one(target_tokens))
