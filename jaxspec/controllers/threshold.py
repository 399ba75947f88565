"""Stop drafting once a draft's confidence falls below a threshold (Draft & Verify, arXiv:2309.08168, §3.4)."""

import dataclasses
from typing import ClassVar, final

from jaxtyping import Array, Bool, Float, Key

from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models, State

CONFIDENCES = ("largest", "token")


@final
@dataclasses.dataclass(frozen=True)
class Threshold(Controller):
    """Draft & Verify: stops after a draft of low confidence.

    Attributes:
        gamma: the threshold. The paper tries 0.2 to 0.8 (Table 4); the best value depends on model and text.
        confidence: `largest`: the largest probability in the draft's distribution at temperature 1, as in Algorithms 3
            and 4. `token`: the draft's own probability, after temperature and truncation, as in §3.4.
    """

    name: ClassVar[str] = "threshold"
    gamma: float = 0.6
    confidence: str = "largest"

    def __post_init__(self) -> None:
        check_confidence("threshold", self.gamma, self.confidence)

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return confidence(signals, self.confidence) >= self.gamma


def confidence(signals: DraftSignals, kind: str) -> Float[Array, " B"]:
    """The drafter's confidence in the newest node; `kind` is one of CONFIDENCES."""
    return signals.top_prob if kind == "largest" else signals.token_prob


def check_confidence(name: str, gamma: float, kind: str) -> None:
    """Raises ValueError, naming the controller, for an invalid threshold or kind of confidence."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"{name}: gamma is a probability, so it must be from 0 to 1, not {gamma}")
    if kind not in CONFIDENCES:
        raise ValueError(f"{name}: confidence must be one of {', '.join(CONFIDENCES)}, not {kind!r}")
