"""Rounds without drafts where drafting does not pay, judged by the tokens and costs of recent rounds."""

import dataclasses
from typing import Any, ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.controllers.round_cost import LONGEST
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Drafts, Models, State
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import CostAware
from jaxspec.decoding.tree import Rows

# Chosen by simulation (`benchmarks/where_drafting_pays.py`), except TRIAL_COST.
PATIENCE = 4.0  # loss, in plain rounds, at which one row stops drafting
EXPONENT = -0.6  # B rows stop at PATIENCE B^EXPONENT, because the mean of many rows varies less
TRIAL = 0.003  # share of the time of plain rounds that rounds on trial may lose
LARGEST_LOSS = 0.2  # largest loss of a trial, which at most LARGEST_LOSS / TRIAL plain rounds make up
TRIAL_COST = 1.25  # largest cost of a round on trial with several levels, in rounds of one level


@chex.dataclass(frozen=True)
class PlainState:
    """The inner controller's state, and the balance of drafting, which is that of all rows."""

    balance: Float[Array, " B"]  # at most 0
    on_trial: Bool[Array, " B"]  # whether the row drafts few levels only
    inner: State


@final
@dataclasses.dataclass(frozen=True)
class PlainRounds(Controller):
    """Another controller, except that no row drafts while drafting does not pay.

    A round with drafts gains its mean number of tokens per row, less its cost in plain rounds. The balance is the sum
    of these gains. It is never above 0, so that good rounds long ago do not count (Page's CUSUM test, Biometrika 41,
    1954). Its limit is -PATIENCE B^EXPONENT. Below half the limit, rounds are on trial: they draft few levels. Below
    the limit, rounds are plain. Only a round on trial can take the balance there, because a single long round that
    loses, such as the first one, proves little. Each plain round adds TRIAL, until the balance is above the limit and a
    round on trial follows. If its drafts pay, the balance rises and drafting goes on. Otherwise as many plain rounds
    follow as make up its loss.

    All rows draft or none does, because a round takes as long for one row as for all.
    """

    name: ClassVar[str] = "plain-rounds"
    depends_on_batch: ClassVar[bool] = True
    goes_plain: ClassVar[bool] = True
    inner: Controller
    costs: CostAware  # the part of the method that has the costs
    trial_levels: int = 0
    """Most levels of a round on trial; 0: found from the costs at the first context, once they are measured."""

    def __post_init__(self) -> None:
        if not self.trial_levels and not self.costs.needs_costs:
            object.__setattr__(self, "trial_levels", cheap_levels(self.costs))

    @property
    def stops(self) -> bool:
        """As the inner controller."""
        return self.inner.stops

    @property
    def needs_weights(self) -> bool:
        return self.inner.needs_weights

    def at_context(self, context: Int[Array, ""]) -> Any:
        part: Any = self.costs.at_context(context)
        return dataclasses.replace(self, inner=self.inner.at_context(context), costs=part)

    def init(self, batch: int) -> PlainState:
        balance, on_trial = jnp.zeros(batch, jnp.float32), jnp.zeros(batch, bool)
        return PlainState(balance=balance, on_trial=on_trial, inner=self.inner.init(batch))

    def begin(
        self, models: Models, keys: Key[Array, " B"], state: PlainState, unfinished: Rows, builder: TreeBuilder
    ) -> tuple[PlainState, Rows]:
        inner, drafts = self.inner.begin(models, keys, state.inner, unfinished, builder)
        return dataclasses.replace(state, inner=inner), drafts & (mean(state.balance, unfinished) > limit(unfinished))

    def admits(self, drafts: Drafts) -> Bool[Array, "B Q"] | None:
        return self.inner.admits(drafts)

    def on_level(self, state: PlainState, signals: DraftSignals) -> PlainState:
        return dataclasses.replace(state, inner=self.inner.on_level(state.inner, signals))

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: PlainState, signals: DraftSignals) -> Rows:
        more = self.inner.keep_drafting(models, keys, state.inner, signals)
        return more & (~state.on_trial | (signals.level < self.trial_levels))

    def update(self, state: PlainState, counts: RoundCounts) -> PlainState:
        levels, unfinished = jnp.asarray(counts.levels), jnp.asarray(counts.committed) > 0
        cost = self.costs.round_cost(levels.max(), 1.0 + jnp.asarray(counts.verified).max()) / self.costs.plain_cost
        tokens = jnp.where(levels > 0, jnp.asarray(counts.uncut), 1)  # tokens of copies are not the drafter's
        gain = jnp.where(levels.max() > 0, mean(tokens, unfinished) - cost, TRIAL)
        least = limit(unfinished)
        lowest = jnp.where(state.on_trial, least - LARGEST_LOSS, 0.9 * least)
        balance = jnp.clip(mean(state.balance, unfinished) + gain, lowest, 0.0)
        return PlainState(
            balance=jnp.where(unfinished, balance, state.balance),
            on_trial=jnp.where(unfinished, balance < least / 2, state.on_trial),
            inner=self.inner.update(state.inner, counts),
        )


def cheap_levels(part: CostAware) -> int:
    """The levels of a chain in the smallest size of verification; more if longer rounds cost at most TRIAL_COST
    rounds of one level, as with heads that draft all levels in one pass."""
    level, table = part.known_costs
    least = next((nodes - 1 for nodes, _ in table if nodes > 1), 1)
    costs = [
        levels * level + next(cost for nodes, cost in table if nodes > levels)
        for levels in range(1, min(LONGEST, table[-1][0] - 1) + 1)
    ]
    return max([least, *(levels for levels, cost in enumerate(costs, 1) if cost <= TRIAL_COST * costs[0])])


def limit(rows: Rows) -> Float[Array, ""]:
    """The balance of these rows below which none of them drafts."""
    return -PATIENCE * jnp.maximum(rows.sum(), 1) ** EXPONENT


def mean(values: Float[Array, " B"] | Int[Array, " B"], rows: Rows) -> Float[Array, ""]:
    """The mean of the chosen rows; 0 if there is none."""
    return jnp.where(rows, values, 0).sum(dtype=jnp.float32) / jnp.maximum(rows.sum(), 1)
