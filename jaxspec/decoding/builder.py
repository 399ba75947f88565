"""The interface of tree builders."""

import abc
from typing import ClassVar

from jaxspec.decoding.rule import Propose
from jaxspec.decoding.strategy import Strategy
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, Selection

Grown = tuple[DraftTree, Frontier]
"""A tree with one level more, and the nodes to expand after it."""


class TreeBuilder(Strategy):
    """Decides the shape of the tree.

    Attributes:
        prunes: it drops nodes or siblings by their own confidence. This is lossless with Gumbel coupling and greedy
            decoding, but not if children are sampled.
        varies: the number of nodes depends on the text, even if every row drafts to full depth.
    """

    prunes: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """Largest number of levels below the root."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Largest number of nodes before `prune`, root included."""

    @property
    def verified(self) -> int:
        """Largest number of nodes after `prune`, root included."""
        return self.size

    @property
    def is_chain(self) -> bool:
        """Whether all its trees are single paths."""
        return self.size == self.depth + 1

    @property
    def at_temperature_0(self) -> "TreeBuilder":
        """The builder for a batch of greedy texts."""
        return self

    @abc.abstractmethod
    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        """Adds the next level to the `active` rows, and returns the nodes to expand after it.

        Without `prunes`, every live child from `propose` is added to the tree, in the order of siblings. A child may
        be left out only for a reason that depends neither on its token nor on its confidence. New nodes are at slots
        below `size`, each after its parent (`tree.add_nodes`). The frontier is one level deeper. All frontiers have the
        same width, except the root's, which has width 1.
        """

    def prune(self, tree: DraftTree) -> Selection | None:
        """The nodes to verify, at most `verified`, live ones first; None: all. Called only if the rule permits it."""
        return None
