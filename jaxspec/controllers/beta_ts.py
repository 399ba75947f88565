"""Thompson sampling with a Beta posterior decides when to stop drafting (EESD, arXiv:2406.03853, Algorithm 2)."""

import dataclasses
from typing import ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxspec.controllers.posterior_update import BETA_FLOOR, check_prior, compared
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.sampling import bernoulli
from jaxspec.decoding.tree import Rows

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

    After each level it draws at random whether to draft another one.

    A round in which a of D > 0 drafted levels were accepted adds r to alpha and n - r to beta (Eqs. 3 and 4). The paper
    prints r = |Q_v| - 1 and n = min(|Q_v| + 1, |Q_d|) without defining Q_v exactly.

    The paper draws theta ~ Beta(alpha, beta) and then chi ~ Bernoulli(theta) for every token. No theta is used twice,
    so chi is drawn from Bernoulli(E[theta]) = Bernoulli(alpha / (alpha + beta)), which is the same.

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
        self.require_that(lambda value: value in READINGS, f"be one of {', '.join(READINGS)}", "reading")
        check_prior(self)

    def init(self, batch: int) -> BetaState:
        alpha, beta = (jnp.full(batch, prior, jnp.float32) for prior in (self.prior_alpha, self.prior_beta))
        return BetaState(alpha=alpha, beta=beta)

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: BetaState, signals: DraftSignals) -> Rows:
        return bernoulli(keys, state.alpha / (state.alpha + state.beta))

    def update(self, state: BetaState, counts: RoundCounts) -> BetaState:
        accepted, levels = jnp.asarray(counts.accepted), jnp.asarray(counts.levels)
        successes = accepted - 1 if self.reading == "printed" else accepted
        trials = jnp.minimum(accepted + 2, levels) if self.reading == "bonus" else compared(accepted, levels)
        add = lambda old, new: jnp.where(levels > 0, jnp.maximum(old + new, BETA_FLOOR), old)
        return BetaState(alpha=add(state.alpha, successes), beta=add(state.beta, trials - successes))
