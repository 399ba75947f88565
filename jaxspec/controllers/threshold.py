"""Stop drafting once a draft's confidence falls below a threshold (Draft & Verify, arXiv:2309.08168, §3.4)."""

import dataclasses
from typing import Any, ClassVar

from jaxtyping import Array, Float

from jaxspec.decoding.controller import DraftSignals

CONFIDENCES = ("largest", "token")


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Drafts on while it is confident enough of its last draft; that one is verified either way (Draft & Verify).

    Attributes:
        gamma: the threshold. The paper tries 0.2 to 0.8 (Table 4); how good one is depends on model and text.
        confidence: `largest`: the largest probability of the distribution that the draft came from, at temperature 1,
            as in Algorithms 3 and 4; `token`: the draft's own probability, with the temperature and truncation that it
            was drawn with, as in §3.4. Of a greedy chain they are the same.
    """

    stops: ClassVar[bool] = True
    gamma: float = 0.6
    confidence: str = "largest"

    def __post_init__(self) -> None:
        check_confidence("threshold", self.gamma, self.confidence)

    def init(self, models, batch) -> Any:
        return ()

    def keep_drafting(self, models, keys, state, evidence):
        return confidence(evidence, self.confidence) >= self.gamma

    def update(self, state, accepted, levels):
        return state


def confidence(evidence: DraftSignals, kind: str) -> Float[Array, " B"]:
    """How sure the drafter is of the newest node; `kind` is one of CONFIDENCES."""
    return evidence.top_prob if kind == "largest" else evidence.token_prob


def check_confidence(name: str, gamma: float, kind: str) -> None:
    """Raises ValueError for a threshold or a kind of confidence that the controller `name` cannot have."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"{name}: gamma is compared with probabilities, so it is from 0 to 1, not {gamma}")
    if kind not in CONFIDENCES:
        raise ValueError(f"{name}: confidence is one of {', '.join(CONFIDENCES)}, not {kind!r}")
