"""The common base of drafters, tree builders and controllers, and of those that use measured costs."""

import abc
import dataclasses
from typing import Any, ClassVar

from jaxspec.decoding.cost_table import CostTable, Ratios, read_ratio, read_ratios, round_ratio, show_ratio, show_ratios
from jaxspec.host.arguments import integer

MOST = 4096  # largest value of a setting that counts nodes, levels or tokens


class Strategy(abc.ABC):
    """A frozen, hashable dataclass of static settings with pure methods.

    Its state, if it has one, is a pytree of arrays whose first axis is B, so that single rows can be replaced.

    Attributes:
        name: the name that users type.
    """

    name: ClassVar[str]

    def require(self, most: int = MOST, **least: int) -> None:
        """Raises ValueError if a setting is not a whole number from its least value, given by name, to `most`."""
        for setting, value in least.items():
            integer(f"{self.name}: {setting}", getattr(self, setting), value, most)

    @property
    def needs_costs(self) -> bool:
        """Whether it needs measured costs."""
        return False

    def with_costs(self, table: CostTable) -> "Strategy":
        """The same strategy; every missing cost is taken from a measured table."""
        return self


COST = {"parse": read_ratio, "show": show_ratio}
VERIFY = {"parse": read_ratios, "show": show_ratios}
"""Metadata of the settings `cost` and `verify`."""
FITTED = {"fitted": True}
"""Metadata of a field that follows from the drafter's weights, which users do not type."""


class CostAware(Strategy):
    """A strategy with two settings in units of s_t(1): `cost` of a drafted level, and `verify` by number of nodes.

    None: to be measured on the device.
    """

    cost: float | None
    verify: Ratios | None

    @property
    def level_width(self) -> int:
        """Number of nodes expanded at once in the level that `cost` refers to."""
        return 1

    def check_costs(self) -> None:
        """Raises ValueError if the table `verify` is not valid."""
        nodes, costs = zip(*self.verify or [(1, 1.0)], strict=True)
        if list(nodes) != sorted({*nodes}) or not all(0 < cost < float("inf") for cost in costs):
            raise ValueError(
                f"{self.name}: verify gives each number of nodes once, in rising order, with a cost above 0, as in "
                f"1:1.0/8:1.9; not {show_ratios(self.verify)}"
            )

    @property
    def needs_costs(self) -> bool:
        return self.cost is None or self.verify is None

    def with_costs(self, table: CostTable) -> "CostAware":
        """The same strategy; `cost` and `verify` are taken from the table if they are not given."""
        cost = round_ratio(table.level_cost(self.level_width)) if self.cost is None else self.cost
        measured = tuple((nodes, round_ratio(seconds / table.plain)) for nodes, seconds in table.verify)
        unpriced: Any = self  # a dataclass, as every strategy
        return dataclasses.replace(unpriced, cost=cost, verify=measured if self.verify is None else self.verify)

    @property
    def known(self) -> tuple[float, Ratios]:
        """`cost` and `verify`. Raises ValueError if they are still to be measured."""
        if self.cost is None or self.verify is None:
            raise ValueError(
                f"{self.name}: its costs are not measured yet; give cost= and verify=, or use Engine.calibrated"
            )
        return self.cost, self.verify
