"""Thompson sampling of the draft length, from the expected tokens and the cost of a round."""

import dataclasses
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxspec.controllers.posterior_update import check_prior, draw_beta
from jaxspec.controllers.round_cost import DISCOUNT, LONGEST, Density, LengthPlanner, chain_density, count_density
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import COST, FITTED, VERIFY, ContextCosts, Ratios
from jaxspec.decoding.tree import Rows

LIKENESS = 10.0  # weight, in comparisons, of the previous position's mean as a prior; chosen by simulation


@chex.dataclass(frozen=True)
class LengthState:
    """Discounted verdicts at each position, and this round's draft length."""

    accepted: Float[Array, "B positions"]
    rejected: Float[Array, "B positions"]
    density: Density
    length: Int[Array, " B"]


@final
@dataclasses.dataclass(frozen=True)
class LengthTS(LengthPlanner):
    """Thompson sampling of the length with the most tokens per cost.

    The draft at position i is accepted with probability theta_i if all drafts before it are. The posterior of theta_i
    is a Beta distribution, from the comparisons at position i and a prior whose mean is that of position i - 1. Once
    per round all theta are drawn, and the round drafts the number L of levels that maximises

        (1 + theta_1 + theta_1 theta_2 + ... + theta_1 ... theta_L) / (L cost + verify(nodes of L levels))

    which is expected tokens per cost. L is 0 if drafting does not pay. Every round, also one without drafts, discounts
    all earlier rounds, so a row that has stopped drafting returns to the prior and tries again.

    A level costs the same for one row as for all, so all rows draft the length that is best for the unfinished ones.

    Attributes:
        prior_alpha, prior_beta: the prior of the first position.
        cost, verify: see `CostAware`.
    """

    name: ClassVar[str] = "length-ts"
    depends_on_batch: ClassVar[bool] = True
    prior_alpha: float = 3.0
    prior_beta: float = 1.0
    cost: float | None = dataclasses.field(default=None, metadata=COST)
    verify: Ratios | None = dataclasses.field(default=None, metadata=VERIFY)
    contexts: tuple[ContextCosts, ...] = dataclasses.field(default=(), metadata=FITTED)
    own_levels: int | None = dataclasses.field(default=None, metadata=FITTED)

    def __post_init__(self) -> None:
        check_prior(self)
        self.check_costs()

    def init(self, batch: int) -> LengthState:
        return LengthState(
            accepted=jnp.zeros((batch, LONGEST), jnp.float32),
            rejected=jnp.zeros((batch, LONGEST), jnp.float32),
            density=chain_density(batch),
            length=jnp.zeros(batch, jnp.int32),
        )

    def begin(
        self, models: Models, keys: Key[Array, " B"], state: LengthState, unfinished: Rows, builder: TreeBuilder
    ) -> tuple[LengthState, Rows]:
        theta = draw_beta(keys, *self.posterior(state))
        length = best_length(theta, self.costs_by_length(builder, state.density, unfinished), unfinished)
        return dataclasses.replace(state, length=jnp.full_like(state.length, length)), unfinished & (length > 0)

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: LengthState, signals: DraftSignals) -> Rows:
        return signals.level < state.length

    def posterior(self, state: LengthState) -> tuple[Float[Array, "B positions"], Float[Array, "B positions"]]:
        """Alpha and beta of each position's posterior."""
        weights = jnp.full(LONGEST, LIKENESS, jnp.float32).at[0].set(self.prior_alpha + self.prior_beta)

        def position(mean: Float[Array, " B"], counts: tuple) -> tuple:
            weight, accepted, rejected = counts
            alpha, beta = weight * mean + accepted, weight * (1 - mean) + rejected
            return alpha / (alpha + beta), (alpha, beta)

        first = jnp.full_like(state.accepted[:, 0], self.prior_alpha / (self.prior_alpha + self.prior_beta))
        counts = (weights, state.accepted.T, state.rejected.T)
        _, (alpha, beta) = jax.lax.scan(position, first, counts, unroll=True)
        return alpha.T, beta.T

    def update(self, state: LengthState, counts: RoundCounts) -> LengthState:
        position, accepted = jnp.arange(LONGEST), jnp.asarray(counts.accepted)[:, None]
        kept = jnp.where(jnp.asarray(counts.committed) > 0, DISCOUNT, 1.0)[:, None]
        rejected = (position == accepted) & (position < jnp.asarray(counts.levels)[:, None])
        return LengthState(
            accepted=kept * state.accepted + (position < accepted),
            rejected=kept * state.rejected + rejected,
            density=count_density(state.density, counts),
            length=state.length,
        )


def best_length(
    theta: Float[Array, "B positions"], costs: Float[Array, " lengths"], unfinished: Rows
) -> Int[Array, ""]:
    """The draft length (0 or more) with the most expected tokens of unfinished rows per cost of the round."""
    reached = jnp.cumprod(theta, axis=1) * unfinished[:, None]
    tokens = unfinished.sum() + jnp.concatenate([jnp.zeros(1, jnp.float32), jnp.cumsum(reached.sum(axis=0))])
    return jnp.argmax(tokens / costs).astype(jnp.int32)
