"""No drafting: every round is one token of the target. The baseline, through the same loop and cache."""

import dataclasses
from typing import Any, ClassVar

from jaxspec.tree import DraftTree, Frontier


@dataclasses.dataclass(frozen=True)
class Plain:
    """The drafter that is never asked."""

    abstains: ClassVar[bool] = False

    def taps(self, num_layers: int) -> tuple[int, ...]:
        return ()

    def init(self, models, batch, rows) -> Any:
        return ()

    def grow(self, state, rows):
        return state

    def observe(self, models, state, committed):
        return state

    def root(self, models, state, prefix, tree):
        raise AssertionError("a tree without levels asks its drafter nothing")

    expand = root


@dataclasses.dataclass(frozen=True)
class RootOnly:
    """The tree of plain decoding: the root alone."""

    prunes: ClassVar[bool] = False
    depth: ClassVar[int] = 0
    width: ClassVar[int] = 1
    size: ClassVar[int] = 1
    verified: ClassVar[int] = 1

    def grow(self, propose, tree, frontier, logits, going) -> tuple[DraftTree, Frontier]:
        return tree, frontier

    def prune(self, tree: DraftTree) -> DraftTree:
        return tree
