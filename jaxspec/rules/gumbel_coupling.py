"""Gumbel coupling: target and drafter sample with the same noise (drafter-invariant decoding, arXiv:2408.07978)."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.decoding.drafter import Drafts, log_mass
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import argmax, kept_logits, never_greedy
from jaxspec.decoding.tree import DraftTree
from jaxspec.rules.greedy import follow, propose_top_k


@final
@dataclasses.dataclass(frozen=True)
class GumbelCoupling(Rule):
    """One Gumbel vector g [V] for each position of the text. The target's token there is argmax(log p + g).

    The child that equals it is accepted. All nodes of a depth share g, which depends only on the text's key and the
    position. So the text depends only on p and g. It is plain decoding's text for the same seed, whatever is drafted,
    pruned or decoded in the same batch. Children are the top k of log q + g, and their confidences the softmax of these
    scores: the probability that a child is the target's token if log p differed from log q by further Gumbel noise.
    """

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        shared = where_sampled(draws)[:, None]
        if drafts.token is not None:
            shared = jnp.take_along_axis(shared, drafts.token, axis=-1)
        scores = kept_logits(drafts.logits, never_greedy(draws.sampling)) + shared
        if drafts.token is not None:  # the sum of the candidates' probabilities stays the same
            scores = jax.nn.log_softmax(scores) + log_mass(drafts)
        return propose_top_k(dataclasses.replace(drafts, logits=scores), width, count)

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        noise, scores = where_sampled(draws), kept_logits(logits, draws.sampling)
        for level in range(noise.shape[1]):  # selects are cheaper than a gather of [V] rows
            at_level = (tree.depth == level)[..., None]
            scores += jnp.where(at_level, noise[:, level, None], 0.0)
        return follow(tree, argmax(scores), depth)


def where_sampled(draws: Draws) -> Float[Array, "B *P V"]:
    """The noise, set to 0 in rows with temperature 0."""
    temperature = draws.sampling.temperature
    return jnp.where(temperature.reshape(-1, *[1] * (draws.noise.ndim - 1)) > 0, draws.noise, 0.0)
