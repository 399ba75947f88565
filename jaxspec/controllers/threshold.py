"""Stop drafting once a draft's confidence falls below a threshold (Draft & Verify, arXiv:2309.08168, §3.4)."""

import dataclasses
from typing import ClassVar, final

from jaxtyping import Array, Float, Key

from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models, State
from jaxspec.decoding.tree import Rows

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
        check_confidence(self)

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals) -> Rows:
        return confidence(signals, self.confidence) >= self.gamma


def confidence(signals: DraftSignals, kind: str) -> Float[Array, " B"]:
    """The drafter's confidence in the newest node; `kind` is one of CONFIDENCES."""
    return signals.top_prob if kind == "largest" else signals.token_prob


def check_confidence(controller: Controller) -> None:
    """Raises ValueError for an invalid `gamma`, the threshold, or `confidence`."""
    controller.require_that(lambda value: 0 <= value <= 1, "be a probability, from 0 to 1", "gamma")
    controller.require_that(lambda kind: kind in CONFIDENCES, f"be one of {', '.join(CONFIDENCES)}", "confidence")
