"""The tree of fixed width and depth that papers compare with (VCT in EDD's appendix A), cut to a budget of nodes."""

import dataclasses
import functools
import heapq
from typing import ClassVar, final

from jaxspec.builders.static import Path, Static
from jaxspec.decoding.builder import Grown, TreeBuilder
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Rows


@functools.cache
def likely_paths(width: int, depth: int, count: int) -> tuple[Path, ...]:
    """The first `count` paths of the uniform tree (all, if it has fewer), parents before children.

    They are ordered by Σ (rank + 1) over a path's levels, as if one more rank were as unlikely as one more level; then
    by depth, then by the ranks from the root down.
    """
    paths: list[Path] = []
    waiting: list[tuple[int, int, Path]] = [(1, 1, (0,))]
    while waiting and len(paths) < count:
        cost, level, path = heapq.heappop(waiting)
        paths.append(path)
        if path[-1] + 1 < width:
            heapq.heappush(waiting, (cost + 1, level, (*path[:-1], path[-1] + 1)))
        if level < depth:
            heapq.heappush(waiting, (cost + 1, level + 1, (*path, 0)))
    return tuple(paths)


@final
@dataclasses.dataclass(frozen=True)
class Uniform(TreeBuilder):
    """A tree of fixed width and depth, cut to `total` nodes by rank.

    The papers' tree of width 3 and depth 5 has 363 nodes below the root. By default only 63 of them are grown
    (`likely_paths`), which with the root fill a compiled size of 64. `total` includes the root.
    """

    name: ClassVar[str] = "uniform"
    width: int = 3
    depth: int = 5
    total: int = 64

    def __post_init__(self) -> None:
        self.require(width=1, depth=1, total=2)

    @property
    def tree(self) -> Static:
        """The same tree, given by its paths."""
        return Static(paths=likely_paths(self.width, self.depth, self.total - 1))

    @property
    def size(self) -> int:
        return self.tree.size

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        return self.tree.grow(propose, tree, frontier, active)
