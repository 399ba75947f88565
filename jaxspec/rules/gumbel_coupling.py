"""Gumbel coupling: the target and the drafter draw with the same noise (drafter-invariant, arXiv:2408.07978)."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.rule import Proposal, Rule, Verdict
from jaxspec.decoding.sampling import Sampling, argmax, never_greedy, probabilities
from jaxspec.decoding.tree import DraftTree, take
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

    def propose(
        self,
        keys: Key[Array, " B"],
        noise: Float[Array, "B V"],
        sampling: Sampling,
        drafts: Drafts,
        width: int,
        count: int,
    ) -> Proposal:
        shared = jnp.where(sampling.temperature[:, None] > 0, noise, 0.0)[:, None]
        if drafts.token is not None:
            shared = jnp.take_along_axis(shared, drafts.token, axis=-1)
        scores = jnp.log(probabilities(drafts.logits, never_greedy(sampling))) + shared
        if drafts.token is not None:  # the candidates keep the share of all mass that they have
            scores = jax.nn.log_softmax(scores) + jax.nn.logsumexp(drafts.logits, axis=-1, keepdims=True)
        return propose_top_k(dataclasses.replace(drafts, logits=scores), width, count)

    def verify(
        self,
        keys: Key[Array, " B"],
        noise: Float[Array, "B P V"],
        sampling: Sampling,
        tree: DraftTree,
        logits: Float[Array, "B N V"],
        depth: int,
    ) -> Verdict:
        scores = jnp.log(probabilities(logits, sampling)) + take(noise, tree.depth)
        return follow(tree, argmax(scores), depth)
