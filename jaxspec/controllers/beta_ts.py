"""Thompson sampling with a Beta posterior decides when to stop drafting (EESD, arXiv:2406.03853, Algorithm 2)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jaxspec.controllers.posterior_update import check_prior, compared
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.sampling import bernoulli


@chex.dataclass(frozen=True)
class BetaState:
    """The posterior Beta(alpha, beta) of each sequence's acceptance rate."""

    alpha: Float[Array, " B"]
    beta: Float[Array, " B"]


@final
@dataclasses.dataclass(frozen=True)
class BetaTS(Controller):
    """EESD: Thompson sampling of the acceptance rate.

    After each level it draws at random whether to draft another one.

    A round in which a of D drafted levels were accepted adds a to alpha and min(a + 1, D) - a to beta: the comparisons
    that were made. The paper has |Q_v| - 1 and min(|Q_v| + 1, |Q_d|) (Eqs. 3 and 4), without defining Q_v exactly.

    The paper draws theta ~ Beta(alpha, beta) and then chi ~ Bernoulli(theta) for every token. No theta is used twice,
    so chi is drawn from Bernoulli(E[theta]) = Bernoulli(alpha / (alpha + beta)), which is the same.

    Attributes:
        prior_alpha, prior_beta: parameters before the first round. The paper gives none. With the defaults the mean
            draft length is four, and the prior weighs as much as four comparisons.
    """

    name: ClassVar[str] = "beta-ts"
    prior_alpha: float = 3.0
    prior_beta: float = 1.0

    def __post_init__(self) -> None:
        check_prior(self)

    def init(self, batch: int) -> BetaState:
        alpha, beta = (jnp.full(batch, prior, jnp.float32) for prior in (self.prior_alpha, self.prior_beta))
        return BetaState(alpha=alpha, beta=beta)

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: BetaState, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return bernoulli(keys, state.alpha / (state.alpha + state.beta))

    def update(self, state: BetaState, counts: RoundCounts) -> BetaState:
        accepted, levels = jnp.asarray(counts.accepted), jnp.asarray(counts.levels)
        return BetaState(alpha=state.alpha + accepted, beta=state.beta + compared(accepted, levels) - accepted)
