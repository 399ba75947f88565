"""The common base of drafters, tree builders and controllers, and of those that use measured costs."""

import abc
import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.cost_table import (
    ContextCosts,
    CostTable,
    Ratios,
    read_ratio,
    read_ratios,
    round_ratio,
    show_ratio,
    show_ratios,
)
from jaxspec.host.arguments import integer

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
    """A strategy with two settings in units of s_t(1): `cost` of a drafted level, and `verify` by number of nodes.

    None: to be measured on the device.
    """

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
        # At least one level is counted: if the cost of a round without drafts is not known, its first pass may run.
        level, table = self.known_costs
        sizes, costs = (jnp.array(column, jnp.float32) for column in zip(*table, strict=True))
        slope = jnp.maximum(costs[-1] - costs[-2], 0) / (sizes[-1] - sizes[-2]) if len(table) > 1 else 0.0
        fits = sizes >= nodes[..., None] - 1e-3
        beyond = costs[-1] + slope * (nodes - sizes[-1])
        verification = jnp.where(fits.any(axis=-1), costs[fits.argmax(axis=-1)], beyond)
        passes = levels if self.own_levels is None else jnp.minimum(levels, self.own_levels)
        cost = jnp.maximum(passes, 1) * level + verification
        return cost if self.idle is None else jnp.where((levels == 0) & (nodes < 1.5), self.idle, cost)
