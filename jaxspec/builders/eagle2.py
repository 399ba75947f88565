"""EAGLE-2's dynamic tree (arXiv:2406.16858): expand the most confident paths, and keep the most confident nodes."""

import dataclasses
from typing import ClassVar, final

from jaxtyping import Array, Bool

from jaxspec.builders import top_paths
from jaxspec.builders.top_paths import TopPaths, TreeLimits
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Selection


@final
@dataclasses.dataclass(frozen=True)
class Eagle2(TopPaths):
    """EAGLE-2: expands the best `width` nodes, verifies the best `total`.

    Nodes are ranked by the confidence of their path. Each expanded node has `width` children. A level stores only
    children that can still be among the best `total`.

    Attributes:
        total: number of verified nodes, the root included.
        depth: number of levels.
        width: number of nodes expanded at once, and children of each.
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

    def grow(
        self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Bool[Array, " B"]
    ) -> tuple[DraftTree, Frontier]:
        return top_paths.add_level(self.limits, propose, tree, frontier, active)

    def prune(self, tree: DraftTree) -> Selection:
        return top_paths.keep_top(tree, self.verified)
