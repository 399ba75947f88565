"""A threshold that adapts until a target share of the drafts is accepted (Draft & Verify, arXiv:2309.08168, §3.4)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jaxspec.controllers.threshold import check_confidence, confidence
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.tree import Rows


@chex.dataclass(frozen=True)
class AdaptiveState:
    """Threshold and smoothed acceptance rate of each sequence."""

    gamma: Float[Array, " B"]
    rate: Float[Array, " B"]  # AR; no meaning before the first round with drafts
    begun: Bool[Array, " B"]  # whether there was a round with drafts


@final
@dataclasses.dataclass(frozen=True)
class Adaptive(Controller):
    """Draft & Verify: adapts the threshold to a target acceptance rate.

    After a round in which a of D drafted levels were accepted, AR_e = a / D, the update is (Eqs. 2 to 4)

        AR ← beta1 AR + (1 - beta1) AR_e; after the first round AR_e
        gamma ← beta2 gamma + (1 - beta2) (gamma ± epsilon), with + if AR <= alpha

    With the default settings gamma moves by 0.001 per round, which is little within one text; `--keep-state` keeps it
    between prompts. gamma is not limited to [0, 1]: above 1 each round drafts one level, below 0 all levels.

    Attributes:
        gamma: the threshold before the first round.
        alpha: the target acceptance rate; the paper uses 0.7 to 0.9, depending on model and text (Table 7).
        confidence: as for `threshold`.
    """

    name: ClassVar[str] = "adaptive"
    gamma: float = 0.6
    alpha: float = 0.9
    epsilon: float = 0.01
    beta1: float = 0.5
    beta2: float = 0.9
    confidence: str = "largest"

    def __post_init__(self) -> None:
        check_confidence(self)
        self.require_that(lambda value: 0 < value < float("inf"), "be above 0, and finite", "epsilon")
        self.require_that(lambda value: 0 <= value <= 1, "be from 0 to 1", "alpha", "beta1", "beta2")

    def init(self, batch: int) -> AdaptiveState:
        return AdaptiveState(
            gamma=jnp.full(batch, self.gamma, jnp.float32),
            rate=jnp.zeros(batch, jnp.float32),
            begun=jnp.zeros(batch, bool),
        )

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: AdaptiveState, signals: DraftSignals
    ) -> Rows:
        return confidence(signals, self.confidence) >= state.gamma

    def update(self, state: AdaptiveState, counts: RoundCounts) -> AdaptiveState:
        accepted, levels = counts.accepted, counts.levels
        drafted = levels > 0
        of_round = accepted / jnp.maximum(levels, 1)
        rate = jnp.where(state.begun, self.beta1 * state.rate + (1 - self.beta1) * of_round, of_round)
        moved = state.gamma + jnp.where(rate <= self.alpha, self.epsilon, -self.epsilon)
        gamma = self.beta2 * state.gamma + (1 - self.beta2) * moved
        return AdaptiveState(
            gamma=jnp.where(drafted, gamma, state.gamma),
            rate=jnp.where(drafted, rate, state.rate),
            begun=state.begun | drafted,
        )
