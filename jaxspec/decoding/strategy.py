"""The common base of drafters, tree builders and controllers."""

import abc
from typing import ClassVar

from jaxspec.decoding.cost_table import CostTable
from jaxspec.host.arguments import integer

MOST = 4096  # of anything that is counted in a draft


class Strategy(abc.ABC):
    """A frozen, hashable dataclass of static settings with pure methods.

    Its state, if it has one, is a pytree of arrays that all begin with the axis B, so that a row can be replaced.

    Attributes:
        name: what users type.
    """

    name: ClassVar[str]

    def require(self, most: int = MOST, **least: int) -> None:
        """Raises ValueError for a setting that is no whole number from the least value that it may have to `most`."""
        for setting, value in least.items():
            integer(f"{self.name}: {setting}", getattr(self, setting), value, most)

    @property
    def needs_costs(self) -> bool:
        """Whether it decides by costs that it was not given."""
        return False

    def with_costs(self, table: CostTable) -> "Strategy":
        """The same with every cost that it lacks taken from a measured table."""
        return self
