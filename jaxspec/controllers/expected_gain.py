"""Continues drafting while this is expected to give more tokens per second than recent rounds."""

import dataclasses
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxspec.controllers.posterior_update import compared, draw_beta
from jaxspec.controllers.round_cost import DISCOUNT, LONGEST, Density, LengthPlanner, chain_density, count_density
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import COST, FITTED, VERIFY, ContextCosts, Ratios
from jaxspec.decoding.tree import Rows

# Prior mean and precision (inverse variance) of a and b: log-odds of acceptance = a + b · the draft's own log-odds.
PRIOR, CERTAINTY = (1.0, 0.5), (2.0, 4.0)
MOST = 6.0  # the draft's log-odds are clipped to this absolute value
PRIOR_LEVELS = (3.0, 1.0)  # prior numbers of accepted and rejected levels


@chex.dataclass(frozen=True)
class GainState:
    """The statistics of each sequence (discounted sums), and the values of the current round."""

    weights: Float[Array, "B 2"]  # a and b
    precision: Float[Array, "B 2 2"]  # the inverse of their covariance
    accepted: Float[Array, " B"]  # number of accepted levels
    rejected: Float[Array, " B"]  # number of rejected levels
    tokens: Float[Array, " B"]  # number of committed tokens
    time: Float[Array, " B"]  # time of the rounds, in units of s_t(1)
    density: Density
    costs: Float[Array, "B lengths"]  # cost of this round, by its number of levels
    earned: Float[Array, " B"]  # tokens per time of recent rounds, summed over all unfinished rows
    theta: Float[Array, " B"]  # probability that a level not drafted yet is accepted, given the level before
    coverage: Float[Array, " B"]  # log of the sum of the last level's confidences
    chance: Float[Array, " B"]  # probability that all levels of this round so far are accepted
    odds: Float[Array, "B positions"]  # the draft's own log-odds of each level, given the level before


@final
@dataclasses.dataclass(frozen=True)
class ExpectedGain(LengthPlanner):
    """Continues while more levels should increase tokens per second.

    The draft's own probability that a level is accepted, given that the level before is, is the ratio of the sums of
    their confidences. If its log-odds are x, the estimated log-odds are a + b x. a and b are learnt from verdicts
    (logistic regression). The product of these probabilities over the drafted levels is the probability that all of
    them are accepted. Levels that are not drafted yet have the probability theta, which is drawn once per round from
    its Beta posterior. A row drafts another level if for some number of further levels

        expected tokens of these levels > (tokens / time of recent rounds) * (cost of drafting and verifying them)

    Looking only one level ahead is not enough: see `Budgeted`. Every round, also one without drafts, discounts older
    rounds in favour of the prior. So a row that has stopped drafting tries again.

    A level costs the same for one row as for all, so expected tokens are summed over all rows that can draft another.

    Attributes:
        cost, verify: see `CostAware`.
    """

    name: ClassVar[str] = "expected-gain"
    depends_on_batch: ClassVar[bool] = True
    cost: float | None = dataclasses.field(default=None, metadata=COST)
    verify: Ratios | None = dataclasses.field(default=None, metadata=VERIFY)
    contexts: tuple[ContextCosts, ...] = dataclasses.field(default=(), metadata=FITTED)
    own_levels: int | None = dataclasses.field(default=None, metadata=FITTED)

    def __post_init__(self) -> None:
        self.check_costs()

    def init(self, batch: int) -> GainState:
        plain = self.round_cost(jnp.zeros((), jnp.int32), jnp.ones((), jnp.float32))
        return GainState(
            weights=jnp.broadcast_to(jnp.array(PRIOR, jnp.float32), (batch, 2)) + 0,
            precision=jnp.broadcast_to(jnp.diag(jnp.array(CERTAINTY, jnp.float32)), (batch, 2, 2)) + 0,
            accepted=jnp.full(batch, PRIOR_LEVELS[0], jnp.float32),
            rejected=jnp.full(batch, PRIOR_LEVELS[1], jnp.float32),
            tokens=jnp.ones(batch, jnp.float32),
            time=jnp.full(batch, plain, jnp.float32),
            density=chain_density(batch),
            costs=jnp.zeros((batch, LONGEST + 1), jnp.float32),
            earned=jnp.zeros(batch, jnp.float32),
            theta=jnp.zeros(batch, jnp.float32),
            coverage=jnp.zeros(batch, jnp.float32),
            chance=jnp.ones(batch, jnp.float32),
            odds=jnp.zeros((batch, LONGEST), jnp.float32),
        )

    def begin(
        self, models: Models, keys: Key[Array, " B"], state: GainState, unfinished: Rows, builder: TreeBuilder
    ) -> tuple[GainState, Rows]:
        costs = self.costs_by_length(builder, state.density, unfinished)
        earned = jnp.where(unfinished, state.tokens / state.time, 0).sum()
        begun = dataclasses.replace(
            state,
            costs=jnp.broadcast_to(costs, state.costs.shape),
            earned=jnp.full_like(state.earned, earned),
            theta=draw_beta(keys, state.accepted[:, None], state.rejected[:, None])[:, 0],
            coverage=jnp.zeros_like(state.coverage),
            chance=jnp.ones_like(state.chance),
        )
        return begun, pays(begun, unfinished, jnp.zeros((), jnp.int32))

    def on_level(self, state: GainState, signals: DraftSignals) -> GainState:
        log_share = jnp.minimum(signals.log_coverage - state.coverage, -1e-6)
        odds = jnp.clip(log_share - jnp.log(-jnp.expm1(log_share)), -MOST, MOST)
        newest = jnp.arange(LONGEST) == signals.level - 1
        return dataclasses.replace(
            state,
            coverage=signals.log_coverage,
            chance=state.chance * chance_of(state.weights, odds[:, None])[:, 0],
            odds=jnp.where(newest, odds[:, None], state.odds),
        )

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: GainState, signals: DraftSignals) -> Rows:
        return pays(state, signals.active, signals.level)

    def update(self, state: GainState, counts: RoundCounts) -> GainState:
        accepted, levels, committed = (jnp.asarray(x) for x in (counts.accepted, counts.levels, counts.committed))
        unfinished = committed > 0
        comparisons = compared(accepted, levels)
        nodes = 1.0 + jnp.asarray(counts.verified).max()
        time = self.round_cost(levels.max(), nodes)
        weights, precision = learn(state, accepted, comparisons, unfinished)
        add = lambda old, new, prior=0.0: jnp.where(unfinished, prior + DISCOUNT * (old - prior) + new, old)
        return dataclasses.replace(
            state,
            weights=weights,
            precision=precision,
            accepted=add(state.accepted, accepted, PRIOR_LEVELS[0]),
            rejected=add(state.rejected, comparisons - accepted, PRIOR_LEVELS[1]),
            tokens=add(state.tokens, committed),
            time=add(state.time, time),
            density=count_density(state.density, counts),
        )


def chance_of(weights: Float[Array, "B 2"], odds: Float[Array, "B positions"]) -> Float[Array, "B positions"]:
    """The probability that a level is accepted, given the level before; `odds` are the draft's own log-odds."""
    return jax.nn.sigmoid(weights[:, :1] + weights[:, 1:] * odds)


def pays(state: GainState, active: Rows, level: Int[Array, ""]) -> Rows:
    """Whether some number of levels after `level` is expected to give more tokens per time than recent rounds.

    Each level that is not drafted yet is accepted with probability theta. Only `active` rows can draft.
    """
    lengths = jnp.arange(state.costs.shape[1])
    theta = state.theta[:, None]
    each = jnp.where(lengths > level, theta ** jnp.maximum(lengths - level, 1), 0.0)
    tokens = state.chance[:, None] * jnp.cumsum(each, axis=1)
    gained = (tokens * active[:, None]).sum(axis=0)
    spent = state.costs - jax.lax.dynamic_index_in_dim(state.costs, level, axis=1)
    return active & ((gained > state.earned[:, None] * spent) & (lengths > level)).any(axis=1)


def learn(
    state: GainState, accepted: Int[Array, " B"], comparisons: Int[Array, " B"], unfinished: Rows
) -> tuple[Float[Array, "B 2"], Float[Array, "B 2 2"]]:
    """Weights and precision after one Newton step of logistic regression on the discounted log-posterior.

    `accepted` and `comparisons` are counts of levels. Finished rows do not change.
    """
    weights, precision, odds = state.weights, state.precision, state.odds
    position = jnp.arange(odds.shape[1])
    valid = position < comparisons[:, None]
    inputs = jnp.stack([jnp.ones_like(odds), odds], axis=2)
    chance = chance_of(weights, odds)
    error = jnp.where(valid, (position < accepted[:, None]) - chance, 0.0)
    slope = jnp.where(valid, chance * (1 - chance), 0.0)
    certainty, prior = jnp.diag(jnp.array(CERTAINTY, jnp.float32)), jnp.array(PRIOR, jnp.float32)
    new = certainty + DISCOUNT * (precision - certainty) + jnp.einsum("bp,bpi,bpj->bij", slope, inputs, inputs)
    pull = (1 - DISCOUNT) * (prior - weights) @ certainty
    step = jnp.einsum("bij,bj->bi", inverse(new), jnp.einsum("bp,bpi->bi", error, inputs) + pull)
    weights = jnp.where(unfinished[:, None], weights + step, weights)
    return weights, jnp.where(unfinished[:, None, None], new, precision)


def inverse(matrix: Float[Array, "B 2 2"]) -> Float[Array, "B 2 2"]:
    """The inverses of symmetric 2 x 2 matrices."""
    a, b, c = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    rows = jnp.stack([jnp.stack([c, -b], axis=1), jnp.stack([-b, a], axis=1)], axis=1)
    return rows / (a * c - b * b)[:, None, None]
