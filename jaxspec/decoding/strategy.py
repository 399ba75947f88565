"""The base of drafters, tree builders and controllers, and the measured costs that some of them use."""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxspec.host.arguments import integer

MEASURED = "measured"
"""The setting of a cost that is measured on the current device."""


Seconds = tuple[tuple[int, float], ...]  # (number of nodes, seconds), ascending
Ratios = tuple[tuple[int, float], ...]  # (number of nodes, cost in units of s_t(1)), ascending
ContextCosts = tuple[int, float, float, tuple[float, ...]]
"""(context in tokens, cost of a round without drafts, of a level, of verification by size), in units of s_t(1) at the
first context."""


@dataclasses.dataclass(frozen=True)
class CostTable:
    """Seconds of the pieces of a round, for one batch size. Numbers of nodes are per sequence.

    Attributes:
        plain: s_t(1): one forward of the target over one token.
        verify: by n: verification of n tree nodes, s_t(n), with the rest of a round; for every compiled tree size.
        level: s_d(w) by w: one drafted level as it occurs in a round, with w nodes expanded at once.
        idle: a round that drafts nothing, in which the drafter reads the new token; None: not measured.
        context: tokens of each sequence's text.
        longer: tables of longer contexts, ascending, for the same sizes and widths.

    Raises:
        ValueError: a table is empty, or a time is not positive and finite.
    """

    plain: float
    verify: Seconds
    level: Seconds
    idle: float | None = None
    context: int = 0
    longer: tuple["CostTable", ...] = ()

    def __post_init__(self) -> None:
        seconds = [self.plain, *[self.idle] * (self.idle is not None)]
        seconds += [taken for _, taken in (*self.verify, *self.level)]
        if not (self.verify and self.level and all(0 < taken < math.inf for taken in seconds)):
            raise ValueError("a cost table needs times for verification and levels, all of them positive")

    def level_cost(self, width: int) -> float:
        """s_d(width) / s_t(1), linearly interpolated; outside the measured widths, the value at the nearest one."""
        widths, seconds = zip(*self.level, strict=True)
        return float(np.interp(width, widths, seconds)) / self.plain

    def by_context(self, width: int) -> tuple[ContextCosts, ...]:
        """The costs at each context, for levels of `width` nodes; empty if any table lacks a round without drafts.

        Costs do not fall as the context grows: a lower measured time counts as noise.
        """
        costs, floor = [], np.zeros(2 + len(self.verify))
        for table in (self, *self.longer):
            if table.idle is None:
                return ()
            level = table.level_cost(width) * table.plain
            seconds = [table.idle, level, *(taken for _, taken in table.verify)]
            floor = np.maximum(floor, np.array(seconds) / self.plain)
            idle, level, *verify = map(round_ratio, floor.tolist())
            costs.append((table.context, idle, level, tuple(verify)))
        return tuple(costs)


def round_ratio(value: float) -> float:
    """Rounds to three significant digits, the precision of a measured time."""
    return float(f"{value:.3g}")


def read_ratio(text: str) -> float | None:
    """Reads a cost in units of s_t(1), the target's forward over one token; None for `measured`. Raises ValueError."""
    if text == MEASURED:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"a cost is a number such as 0.05, or {MEASURED}, not {text!r}")
    return value


def show_ratio(value: float | None) -> str:
    """Inverse of `read_ratio`."""
    return MEASURED if value is None else str(value)


def read_ratios(text: str) -> Ratios | None:
    """Reads costs by number of nodes, such as `1:1/2:1.45/4:1.7`; None for `measured`. Raises ValueError."""
    if text == MEASURED:
        return None
    try:
        pairs = [pair.split(":") for pair in text.split("/")]
        return tuple((int(nodes), float(cost)) for nodes, cost in pairs)
    except ValueError:
        raise ValueError(f"costs are given as 1:1.0/8:1.9/64:6.0 or {MEASURED}, not {text!r}") from None


def show_ratios(values: Ratios | None) -> str:
    """Inverse of `read_ratios`."""
    return MEASURED if values is None else "/".join(f"{nodes}:{cost}" for nodes, cost in values)


MOST = 4096  # largest value of a setting that counts nodes, levels or tokens


class Strategy(abc.ABC):
    """A frozen, hashable dataclass of static settings with pure methods.

    Its state, if it has one, is a pytree of arrays whose first axis is B, so that single rows can be replaced.
    """

    name: ClassVar[str]  # what users type

    def require(self, most: int = MOST, **least: int) -> None:
        """Raises ValueError if a setting is not a whole number from its least value, given by name, to `most`."""
        for setting, value in least.items():
            integer(f"{self.name}: {setting}", getattr(self, setting), value, most)

    def require_that(self, holds: Callable[[Any], bool], words: str, *settings: str) -> None:
        """Raises ValueError for the first of these settings that violates the condition; `words` complete "it must"."""
        for setting in settings:
            if not holds(value := getattr(self, setting)):
                raise ValueError(f"{self.name}: {setting} must {words}, not {value!r}")

    @property
    def needs_costs(self) -> bool:
        """Whether it needs measured costs."""
        return False

    def with_costs(self, table: CostTable) -> "Strategy":
        """The same strategy; every missing cost is taken from a measured table."""
        return self

    def at_context(self, context: Int[Array, ""]) -> Any:
        """The same strategy with the costs of texts of `context` tokens. They are traced: for use inside a round."""
        return self


COST = {"parse": read_ratio, "show": show_ratio}
VERIFY = {"parse": read_ratios, "show": show_ratios}
"""Metadata of the settings `cost` and `verify`."""
FITTED = {"fitted": True}
"""Metadata of a field that follows from the drafter's weights or from measured costs, which users do not type."""


class CostAware(Strategy):
    """A strategy with costs in s_t(1): `cost` of a drafted level, `verify` by number of nodes; None: to be measured."""

    cost: float | None
    verify: Ratios | None
    contexts: tuple[ContextCosts, ...] = ()
    """Measured costs, from which `at_context` interpolates; none: `cost` and `verify` hold at every context."""
    idle: Any = None
    """The cost of a round that drafts nothing, after `at_context`; None: it was not measured."""
    own_levels: int | None = None
    """As in `Controller.beside_history`."""

    @property
    def level_width(self) -> int:
        """Number of nodes expanded at once in the level that `cost` refers to."""
        return 1

    def check_costs(self) -> None:
        """Raises ValueError if the table `verify` is not valid."""
        nodes, costs = zip(*self.verify or [(1, 1.0)], strict=True)
        if nodes[0] < 1 or list(nodes) != sorted({*nodes}) or not all(0 < cost < float("inf") for cost in costs):
            raise ValueError(
                f"{self.name}: verify gives each number of nodes once, in rising order, from 1 up, with a cost "
                f"above 0, as in 1:1.0/8:1.9; not {show_ratios(self.verify)}"
            )

    @property
    def needs_costs(self) -> bool:
        return self.cost is None or self.verify is None

    def with_costs(self, table: CostTable) -> "CostAware":
        """The same strategy; `cost` and `verify` are taken from the table if they are not given.

        The costs depend on the context if neither is given.
        """
        contexts = table.by_context(self.level_width) if self.cost is None and self.verify is None else self.contexts
        cost = round_ratio(table.level_cost(self.level_width)) if self.cost is None else self.cost
        measured = tuple((nodes, round_ratio(seconds / table.plain)) for nodes, seconds in table.verify)
        verify = measured if self.verify is None else self.verify
        strategy: Any = self  # a dataclass, as every strategy
        return dataclasses.replace(strategy, cost=cost, verify=verify, contexts=contexts)

    def at_context(self, context: Int[Array, ""]) -> Any:
        if not self.contexts:
            return self
        tokens, costs = zip(*((at, (idle, level, *verify)) for at, idle, level, verify in self.contexts), strict=True)
        at, table = jnp.array(tokens, jnp.float32), jnp.array(costs, jnp.float32)
        row = table[0]
        if len(tokens) > 1:  # linear, also beyond the longest: reading keys and values takes time in proportion
            low = (at[1:-1] < context).sum()
            share = jnp.maximum((context - at[low]) / (at[low + 1] - at[low]), 0.0)
            row = table[low] + share * (table[low + 1] - table[low])
        _, verify = self.known_costs
        priced = copy.copy(self)  # not `replace`, because traced costs cannot be checked
        values = {"idle": row[0], "cost": row[1], "verify": tuple((n, row[i]) for i, (n, _) in enumerate(verify, 2))}
        for name, value in values.items():
            object.__setattr__(priced, name, value)
        return priced

    @property
    def known_costs(self) -> tuple[Any, tuple[tuple[int, Any], ...]]:
        """`cost` and `verify`, traced after `at_context`. Raises ValueError if they are still to be measured."""
        if self.cost is None or self.verify is None:
            raise ValueError(
                f"{self.name}: its costs are not measured yet; give cost= and verify=, or use Engine.calibrated"
            )
        return self.cost, self.verify

    @property
    def plain_cost(self) -> Any:
        """The cost of a round that drafts nothing; if it is not measured, of verifying the smallest size."""
        return self.known_costs[1][0][1] if self.idle is None else self.idle

    def round_cost(self, levels: Int[Array, "*lengths"], nodes: Float[Array, "*lengths"]) -> Float[Array, "*lengths"]:
        """The cost of rounds with these numbers of levels and of verified nodes per row (the root included), in s_t(1).

        Verification costs as much as the smallest size in the table that holds a row's nodes; beyond the table it is
        extrapolated from the last two sizes.
        """
        # At least one level is counted: without a measured `idle`, the first pass may run in a round without drafts.
        level, table = self.known_costs
        sizes, costs = (jnp.array(column, jnp.float32) for column in zip(*table, strict=True))
        slope = jnp.maximum(costs[-1] - costs[-2], 0) / (sizes[-1] - sizes[-2]) if len(table) > 1 else 0.0
        fits = sizes >= nodes[..., None] - 1e-3
        beyond = costs[-1] + slope * (nodes - sizes[-1])
        verification = jnp.where(fits.any(axis=-1), costs[fits.argmax(axis=-1)], beyond)
        passes = levels if self.own_levels is None else jnp.minimum(levels, self.own_levels)
        cost = jnp.maximum(passes, 1) * level + verification
        return cost if self.idle is None else jnp.where((levels == 0) & (nodes < 1.5), self.idle, cost)
