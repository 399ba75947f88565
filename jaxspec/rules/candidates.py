"""Deterministic candidates above temperature 0: follow the target's own draws."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from jaxspec.decoding.rule import Proposal, Verdict
from jaxspec.decoding.sampling import probabilities, sample
from jaxspec.rules.greedy import follow, propose_top_k


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
        return propose_top_k(
            logits / jnp.where(sampling.temperature > 0, sampling.temperature, 1.0)[:, None, None], count
        )

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        return follow(tree, sample(keys, probabilities(logits, sampling)), depth)
