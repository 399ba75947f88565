"""The common base of drafters, tree builders and controllers."""

import abc
from typing import ClassVar

from jaxspec.decoding.cost_table import CostTable
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
