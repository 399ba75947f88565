"""Temperature 0: the text of plain greedy decoding."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.rule import Proposal, Verdict
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.tree import DraftTree, path_to


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Temperature 0: the text of plain greedy decoding."""

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, keys, sampling, logits, count) -> Proposal:
        return propose_top_k(logits, count)

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        return follow(tree, argmax(logits), depth)


def propose_top_k(logits: Float[Array, "B W V"], count: int) -> Proposal:
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
