"""Thompson sampling with a Beta posterior decides when to stop drafting (EESD, arXiv:2406.03853, Algorithm 2)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from jaxspec.controllers.posterior_update import BETA_FLOOR, compared, update_beta
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.sampling import bernoulli

READINGS = ("compared", "printed", "bonus")


@chex.dataclass(frozen=True)
class BetaState:
    """The posterior Beta(alpha, beta) of each sequence's acceptance rate."""

    alpha: Float[Array, " B"]
    beta: Float[Array, " B"]


@final
@dataclasses.dataclass(frozen=True)
class BetaTS(Controller):
    """EESD: Thompson sampling of the acceptance rate.

    After each level it draws at random whether to draft another one. The posterior is a Beta distribution.

    A round in which a of D drafted levels were accepted adds r to alpha and n - r to beta (Eqs. 3 and 4). The paper
    prints r = |Q_v| - 1 and n = min(|Q_v| + 1, |Q_d|) without defining Q_v exactly. A round without drafts changes
    nothing.

    The paper draws theta ~ Beta(alpha, beta) and then chi ~ Bernoulli(theta) for every token. No theta is used twice,
    so the chi of a round are independent with probability E[theta] = alpha / (alpha + beta). A Bernoulli variable with
    this probability has the same distribution, and needs no Beta sampling in the loop.

    Attributes:
        prior_alpha, prior_beta: parameters before the first round. The paper gives none. With the defaults the mean
            draft length is four, and the prior weighs as much as four comparisons.
        reading: how to read the paper's Q_v. `compared`: r = a, n = min(a + 1, D), the comparisons that were made.
            `printed`, if Q_v is part of Q_d: r = a - 1 (-1 if nothing was accepted) and n = min(a + 1, D). `bonus`, if
            Q_v includes the bonus token: r = a, n = min(a + 2, D).
    """

    name: ClassVar[str] = "beta-ts"
    prior_alpha: float = 3.0
    prior_beta: float = 1.0
    reading: str = "compared"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"beta-ts: reading must be one of {', '.join(READINGS)}, not {self.reading!r}")
        for name in ("prior_alpha", "prior_beta"):
            if not BETA_FLOOR <= getattr(self, name) < float("inf"):
                raise ValueError(f"beta-ts: {name} must be at least {BETA_FLOOR}, not {getattr(self, name)}")

    def init(self, batch: int) -> BetaState:
        def of(prior):
            return jnp.full(batch, prior, jnp.float32)

        return BetaState(alpha=of(self.prior_alpha), beta=of(self.prior_beta))

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: BetaState, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return bernoulli(keys, state.alpha / (state.alpha + state.beta))

    def update(self, state: BetaState, counts: RoundCounts) -> BetaState:
        accepted, levels = jnp.asarray(counts.accepted), jnp.asarray(counts.levels)
        successes = accepted - 1 if self.reading == "printed" else accepted
        trials = jnp.minimum(accepted + 2, levels) if self.reading == "bonus" else compared(accepted, levels)
        alpha, beta = update_beta(state.alpha, state.beta, successes, trials)
        drafted = levels > 0
        return BetaState(alpha=jnp.where(drafted, alpha, state.alpha), beta=jnp.where(drafted, beta, state.beta))
