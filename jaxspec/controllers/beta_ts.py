"""Thompson sampling with a Beta posterior decides when to stop drafting (EESD, arXiv:2406.03853, Algorithm 2)."""

import dataclasses
from typing import ClassVar

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.decoding.sampling import bernoulli

READINGS = ("compared", "printed", "bonus")
FLOOR = 0.01
"""Alpha and beta never fall below this: the reading `printed` takes from alpha, and a Beta needs both above 0."""


@chex.dataclass(frozen=True)
class BetaState:
    """The posterior Beta(alpha, beta) of each sequence's chance that a drafted token is accepted."""

    alpha: Float[Array, " B"]
    beta: Float[Array, " B"]


@dataclasses.dataclass(frozen=True)
class BetaTS:
    """Drafts on by a coin that learns how often drafts are accepted: Thompson sampling, Beta posterior (EESD).

    A round with a of D drafted levels accepted adds r to alpha and n - r to beta (Eqs. 3 and 4). The paper prints
    r = |Q_v| - 1 and n = min(|Q_v| + 1, |Q_d|) and leaves open what Q_v holds; a round without drafts changes nothing.

    The paper draws theta ~ Beta(alpha, beta) and then chi ~ Bernoulli(theta), anew for every token. No theta is used
    twice, so the chi of a round are independent, each with chance E[theta] = alpha / (alpha + beta): a coin with that
    chance has the very same distribution, and needs no draw from a Beta inside the loop.

    Attributes:
        prior_alpha, prior_beta: the posterior before the first round. The paper gives none; these draft four tokens on
            average, and weigh as much as four comparisons.
        reading: `compared`: r = a, n = min(a + 1, D), the comparisons that were really made; `printed`, with Q_v inside
            Q_d: r = a - 1, which is -1 where nothing was accepted, and n = min(a + 1, D); `bonus`, with the bonus
            token inside Q_v: r = a, n = min(a + 2, D).
    """

    stops: ClassVar[bool] = True
    prior_alpha: float = 3.0
    prior_beta: float = 1.0
    reading: str = "compared"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"beta-ts: reading is one of {', '.join(READINGS)}, not {self.reading!r}")
        for name in ("prior_alpha", "prior_beta"):
            if not FLOOR <= getattr(self, name) < float("inf"):
                raise ValueError(f"beta-ts: {name} must be at least {FLOOR}, and is {getattr(self, name)}")

    def init(self, models, batch) -> BetaState:
        of = lambda prior: jnp.full(batch, prior, jnp.float32)
        return BetaState(alpha=of(self.prior_alpha), beta=of(self.prior_beta))

    def keep_drafting(self, models, keys, state, evidence):
        return bernoulli(keys, state.alpha / (state.alpha + state.beta))

    def update(self, state, accepted, levels) -> BetaState:
        successes = accepted - 1 if self.reading == "printed" else accepted
        trials = jnp.minimum(accepted + (2 if self.reading == "bonus" else 1), levels)
        add = lambda old, new: jnp.where(levels > 0, jnp.maximum(old + new, FLOOR), old)
        return BetaState(alpha=add(state.alpha, successes), beta=add(state.beta, trials - successes))
