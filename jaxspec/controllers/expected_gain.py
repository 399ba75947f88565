"""Continues drafting while this is expected to give more tokens per second than recent rounds."""

import dataclasses
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.controllers.posterior_update import compared, draw_beta
from jaxspec.controllers.round_cost import LONGEST, Density, chain_density, costs_by_length, count_density, round_cost
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.cost_table import Ratios
from jaxspec.decoding.draft_signals import DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.priced import COST, VERIFY, Priced
from jaxspec.decoding.round_counts import RoundCounts

DISCOUNT = 0.98
"""What the round before counts for: the last fifty matter."""

PRIOR = (1.0, 0.5)
"""Before the first round: log-odds of acceptance where the draft's own are 0, and what each of its own adds."""
CERTAINTY = (2.0, 4.0)
"""Of the prior: the inverses of its variances."""
MOST = 6.0
"""Log-odds of a draft count no further than this."""
PRIOR_LEVELS = (3.0, 1.0)
"""Levels accepted and rejected before the first round."""


@chex.dataclass(frozen=True)
class GainState:
    """What each sequence has learnt, with older rounds counted for less, and what this round has shown so far."""

    weights: Float[Array, "B 2"]  # of 1 and of the draft's log-odds, in the log-odds of acceptance
    precision: Float[Array, "B 2 2"]  # the inverse of their covariance
    accepted: Float[Array, " B"]  # levels
    rejected: Float[Array, " B"]  # levels
    tokens: Float[Array, " B"]  # committed
    time: Float[Array, " B"]  # of the rounds, in forwards of the target over one token
    density: Density

    costs: Float[Array, "B lengths"]  # of this round, by its levels
    earned: Float[Array, " B"]  # tokens by time of late, of all unfinished rows together
    theta: Float[Array, " B"]  # the chance that a level not drafted yet is accepted, given the one before
    coverage: Float[Array, " B"]  # log of the sum of the last level's confidences
    chance: Float[Array, " B"]  # the chance that all levels so far are accepted
    odds: Float[Array, "B positions"]  # the draft's own log-odds of each level, given the one before


@final
@dataclasses.dataclass(frozen=True)
class ExpectedGain(Priced, Controller):
    """Continues while more levels should increase tokens per second.

    It compares the expected tokens per second of further levels with those of recent rounds.

    The draft's own chance that a level is accepted, given that the level before it is, is the sum of the level's
    confidences by that of the level before. Its log-odds x become a + b x, the log-odds that are believed, where a and
    b are learnt from what was accepted (logistic regression). The product of these chances over the levels drafted is
    the chance that all of them are accepted. A level that is not drafted yet has the chance theta, which is drawn once
    a round from its Beta posterior. A row drafts on while for some number of further levels

        expected tokens of these levels > (tokens / time of recent rounds) * (price of drafting and verifying them)

    One level ahead is not enough: where two tokens take much longer to verify than one, and eight hardly longer than
    two, no single level would ever pay. Older rounds count for less, and the prior for more, after every round, also
    one without drafts. So a row that has stopped drafting tries again.

    A level costs the same for one row or all, so the rows of a batch decide together: the tokens are those of all rows
    that can draft on.

    Attributes:
        cost: a drafted level, in forwards of the target over one token; None: as measured on the device in use.
        verify: verification of a row's nodes, by their number, likewise.
    """

    name: ClassVar[str] = "expected-gain"
    looks_beyond_row: ClassVar[bool] = True
    cost: float | None = dataclasses.field(default=None, metadata=COST)
    verify: Ratios | None = dataclasses.field(default=None, metadata=VERIFY)

    def __post_init__(self) -> None:
        self.check_costs()

    def init(self, batch: int) -> GainState:
        def of(*value):
            return jnp.broadcast_to(jnp.array(value, jnp.float32), (batch, len(value))) + 0

        plain = round_cost(self, jnp.zeros((), jnp.int32), jnp.ones(()))
        return GainState(
            weights=of(*PRIOR),
            precision=jnp.broadcast_to(jnp.diag(jnp.array(CERTAINTY)), (batch, 2, 2)) + 0,
            accepted=jnp.full(batch, PRIOR_LEVELS[0]),
            rejected=jnp.full(batch, PRIOR_LEVELS[1]),
            tokens=jnp.ones(batch),
            time=jnp.full(batch, plain),
            density=chain_density(batch),
            costs=jnp.zeros((batch, LONGEST + 1)),
            earned=jnp.zeros(batch),
            theta=jnp.zeros(batch),
            coverage=jnp.zeros(batch),
            chance=jnp.ones(batch),
            odds=jnp.zeros((batch, LONGEST)),
        )

    def begin(
        self,
        models: Models,
        keys: Key[Array, " B"],
        state: GainState,
        unfinished: Bool[Array, " B"],
        builder: TreeBuilder,
    ) -> tuple[GainState, Bool[Array, " B"]]:
        costs = costs_by_length(self, builder, state.density, unfinished)
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

    def note(self, state: GainState, signals: DraftSignals) -> GainState:
        log_share = jnp.minimum(signals.log_coverage - state.coverage, -1e-6)
        odds = jnp.clip(log_share - jnp.log(-jnp.expm1(log_share)), -MOST, MOST)
        here = jnp.arange(LONGEST) == signals.level - 1
        return dataclasses.replace(
            state,
            coverage=signals.log_coverage,
            chance=state.chance * chance_of(state.weights, odds[:, None])[:, 0],
            odds=jnp.where(here, odds[:, None], state.odds),
        )

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: GainState, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return pays(state, signals.active, signals.level)

    def update(self, state: GainState, counts: RoundCounts) -> GainState:
        accepted, levels, committed = (jnp.asarray(x) for x in (counts.accepted, counts.levels, counts.committed))
        seen = committed > 0
        made = compared(accepted, levels)
        nodes = 1.0 + jnp.asarray(counts.verified).max()
        time = round_cost(self, levels.max(), nodes)
        weights, precision = learn(state.weights, state.precision, state.odds, accepted, made, seen)

        def add(old, new, prior=0.0):
            return jnp.where(seen, prior + DISCOUNT * (old - prior) + new, old)

        return dataclasses.replace(
            state,
            weights=weights,
            precision=precision,
            accepted=add(state.accepted, accepted, PRIOR_LEVELS[0]),
            rejected=add(state.rejected, made - accepted, PRIOR_LEVELS[1]),
            tokens=add(state.tokens, committed),
            time=add(state.time, time),
            density=count_density(state.density, counts, DISCOUNT),
        )


def chance_of(weights: Float[Array, "B 2"], odds: Float[Array, "B positions"]) -> Float[Array, "B positions"]:
    """The chance that a level is accepted, given that the one before it is; `odds` are the draft's own log-odds."""
    return jax.nn.sigmoid(weights[:, :1] + weights[:, 1:] * odds)


def pays(state: GainState, active: Bool[Array, " B"], level: Int[Array, ""]) -> Bool[Array, " B"]:
    """Whether some number of levels after `level` is expected to earn the active rows more tokens than their time did.

    Each level that is not drafted yet has the chance theta.
    """
    lengths = jnp.arange(state.costs.shape[1])
    theta = state.theta[:, None]
    each = jnp.where(lengths > level, theta ** jnp.maximum(lengths - level, 1), 0.0)
    tokens = state.chance[:, None] * jnp.cumsum(each, axis=1)
    gained = (tokens * active[:, None]).sum(axis=0)
    spent = state.costs - jax.lax.dynamic_index_in_dim(state.costs, level, axis=1)
    return active & ((gained > state.earned[:, None] * spent) & (lengths > level)).any(axis=1)


def learn(
    weights: Float[Array, "B 2"],
    precision: Float[Array, "B 2 2"],
    odds: Float[Array, "B positions"],
    accepted: Int[Array, " B"],
    made: Int[Array, " B"],
    seen: Bool[Array, " B"],
) -> tuple[Float[Array, "B 2"], Float[Array, "B 2 2"]]:
    """Logistic regression on the comparisons of a round: a Newton step of the discounted log-posterior."""
    position = jnp.arange(odds.shape[1])
    valid = position < made[:, None]
    inputs = jnp.stack([jnp.ones_like(odds), odds], axis=2)
    chance = chance_of(weights, odds)
    error = jnp.where(valid, (position < accepted[:, None]) - chance, 0.0)
    slope = jnp.where(valid, chance * (1 - chance), 0.0)
    certainty, prior = jnp.diag(jnp.array(CERTAINTY)), jnp.array(PRIOR)
    new = certainty + DISCOUNT * (precision - certainty) + jnp.einsum("bp,bpi,bpj->bij", slope, inputs, inputs)
    pull = (1 - DISCOUNT) * (prior - weights) @ certainty
    step = jnp.einsum("bij,bj->bi", inverse(new), jnp.einsum("bp,bpi->bi", error, inputs) + pull)
    return jnp.where(seen[:, None], weights + step, weights), jnp.where(seen[:, None, None], new, precision)


def inverse(matrix: Float[Array, "B 2 2"]) -> Float[Array, "B 2 2"]:
    """The inverses of symmetric matrices."""
    a, b, c = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    rows = jnp.stack([jnp.stack([c, -b], axis=1), jnp.stack([-b, a], axis=1)], axis=1)
    return rows / (a * c - b * b)[:, None, None]
