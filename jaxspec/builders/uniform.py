"""The tree of fixed width and depth that papers compare with (VCT in EDD's, appendix A), cut to a budget of nodes."""

import dataclasses
import functools
import heapq
from typing import ClassVar

from jaxspec.builders.static import Path, Static
from jaxspec.decoding.tree import DraftTree, Frontier


@functools.cache
def likely_paths(width: int, depth: int, count: int) -> tuple[Path, ...]:
    """The first `count` paths of the uniform tree, fewer if it is smaller, parents before children.

    The order is that of Σ (rank + 1) over a path's levels, then of depth, then of the ranks from the root down: one
    rank further is taken to be as unlikely as one level deeper.
    """
    found: list[Path] = []
    waiting: list[tuple[int, int, Path]] = [(1, 1, (0,))]
    while waiting and len(found) < count:
        cost, level, path = heapq.heappop(waiting)
        found.append(path)
        if path[-1] + 1 < width:
            heapq.heappush(waiting, (cost + 1, level, (*path[:-1], path[-1] + 1)))
        if level < depth:
            heapq.heappush(waiting, (cost + 1, level + 1, (*path, 0)))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """`width` children under every node, `depth` levels, of which `total` nodes are kept by their ranks.

    The papers' tree of width 3 and depth 5 has 363 nodes below the root; by default the 63 of lowest ranks are grown
    (`likely_paths`), so that the tree fills the largest size which is usual for verification. Which nodes those are
    does not depend on what they hold, so children may be sampled.

    Attributes:
        total: nodes verified at most, the root included.
    """

    prunes: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    width: int = 3
    depth: int = 5
    total: int = 64

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("depth", 1), ("total", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"uniform: {name} must be at least {least}, and is {getattr(self, name)}")

    @property
    def tree(self) -> Static:
        """The same tree, given by its paths."""
        return Static(paths=likely_paths(self.width, self.depth, self.total - 1))

    @property
    def size(self) -> int:
        return self.tree.size

    @property
    def verified(self) -> int:
        return self.tree.size

    def grow(self, propose, tree, frontier, logits, going) -> tuple[DraftTree, Frontier]:
        return self.tree.grow(propose, tree, frontier, logits, going)

    def prune(self, tree: DraftTree) -> DraftTree:
        return tree
