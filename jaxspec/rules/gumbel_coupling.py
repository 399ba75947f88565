"""Gumbel coupling: target and drafter sample with the same noise (drafter-invariant, arXiv:2408.07978)."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import argmax, kept_logits, never_greedy
from jaxspec.decoding.tree import DraftTree
from jaxspec.rules.greedy import follow, propose_top_k


@final
@dataclasses.dataclass(frozen=True)
class GumbelCoupling(Rule):
    """One Gumbel vector g for each position of the text; the target says argmax(log p + g), and drafts guess that.

    All nodes of a depth share g, which goes by the text's key and the position alone. So the text depends on p and g
    and on nothing else: it is plain decoding's for the same seed, whatever is drafted, pruned or decoded beside it.

    Children are the top k of log q + g. Their confidences are its softmax: the chance that a child is the target's
    token, were log p to differ from log q by as much noise again.
    """

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        shared = where_sampled(draws)[:, None]
        if drafts.token is not None:
            shared = jnp.take_along_axis(shared, drafts.token, axis=-1)
        scores = kept_logits(drafts.logits, never_greedy(draws.sampling)) + shared
        if drafts.token is not None:  # the candidates keep the share of all mass that they have
            scores = jax.nn.log_softmax(scores) + jax.nn.logsumexp(drafts.logits, axis=-1, keepdims=True)
        return propose_top_k(dataclasses.replace(drafts, logits=scores), width, count)

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        noise, scores = where_sampled(draws), kept_logits(logits, draws.sampling)
        for level in range(noise.shape[1]):  # choosing among few is cheaper than a gather of whole vocabularies
            here = (tree.depth == level)[..., None]
            scores += jnp.where(here, noise[:, level, None], 0.0)
        return follow(tree, argmax(scores), depth)


def where_sampled(draws: Draws) -> Float[Array, "B *P V"]:
    """The noise of rows that are sampled; none at temperature 0."""
    temperature = draws.sampling.temperature
    return jnp.where(temperature.reshape(-1, *[1] * (draws.noise.ndim - 1)) > 0, draws.noise, 0.0)
