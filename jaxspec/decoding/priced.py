"""Strategies that use the costs of a drafted level and of verification."""

import dataclasses
from typing import Any

from jaxspec.decoding.cost_table import CostTable, Ratios, read_ratio, read_ratios, round_ratio, show_ratio, show_ratios
from jaxspec.decoding.strategy import Strategy

COST = {"parse": read_ratio, "show": show_ratio}
VERIFY = {"parse": read_ratios, "show": show_ratios}
"""Metadata of the settings `cost` and `verify`."""


class Priced(Strategy):
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

    def with_costs(self, table: CostTable) -> "Priced":
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
