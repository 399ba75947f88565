"""EAGLE-2's dynamic tree (arXiv:2406.16858): expand the most confident paths, and keep the most confident nodes."""

import dataclasses
from typing import ClassVar, final

from jaxspec.builders.top_paths import TopPaths, TreeLimits


@final
@dataclasses.dataclass(frozen=True)
class Eagle2(TopPaths):
    """EAGLE-2: expands the best `width` nodes, verifies the best `total`.

    Nodes are ranked by the confidence of their path. An expanded node has `width` children. `total` includes the root.
    """

    name: ClassVar[str] = "eagle2"
    total: int = 60
    depth: int = 6
    width: int = 10

    def __post_init__(self) -> None:
        self.require(total=2, depth=1, width=1)

    @property
    def limits(self) -> TreeLimits:
        return TreeLimits(branching=self.width, frontier=self.width, depth=self.depth, total=self.total)
