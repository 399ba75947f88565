"""Deterministic candidates above temperature 0: follow the target's own draws."""

import dataclasses
from typing import ClassVar, final

from jaxtyping import Array, Float, Key

from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.rule import Proposal, Rule, Verdict
from jaxspec.decoding.sampling import Sampling, probabilities, sample
from jaxspec.decoding.tree import DraftTree
from jaxspec.rules.greedy import follow, propose_top_k


@final
@dataclasses.dataclass(frozen=True)
class Candidates(Rule):
    """Deterministic children: draw the target's own token at every node and follow it while it is among the children.

    The same in distribution as accepting each child x with p(x) and renormalising p without x after a rejection, since
    that too accepts x with probability p(x) and otherwise draws from what is left. Lossless for any set of distinct
    candidates, however it was found, pruned or sorted.
    """

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, keys: Key[Array, " B"], sampling: Sampling, drafts: Drafts, width: int, count: int) -> Proposal:
        return propose_top_k(drafts, width, count, sampling.temperature)

    def verify(
        self, keys: Key[Array, " B"], sampling: Sampling, tree: DraftTree, logits: Float[Array, "B N V"], depth: int
    ) -> Verdict:
        return follow(tree, sample(keys, probabilities(logits, sampling)), depth)
