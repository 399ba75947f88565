"""The interface of tree builders."""

import abc
from typing import ClassVar

from jaxtyping import Array, Bool

from jaxspec.decoding.rule import Propose
from jaxspec.decoding.strategy import Strategy
from jaxspec.decoding.tree import DraftTree, Frontier, Selection


class TreeBuilder(Strategy):
    """Decides which nodes a tree gets.

    Attributes:
        prunes: drops nodes, or leaves out siblings, by their own value: sound where children are coupled, never where
            they are drawn.
        varies: how many nodes it leaves depends on the text, even where every row drafts to full depth.
    """

    prunes: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """Most levels below the root."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Nodes while growing, root included."""

    @property
    def verified(self) -> int:
        """Most nodes left after `prune`, root included."""
        return self.size

    @property
    def is_chain(self) -> bool:
        """Whether all its trees are single paths, which have one leaf and no gaps."""
        return self.size == self.depth + 1

    @property
    def at_temperature_0(self) -> "TreeBuilder":
        """What a batch of greedy texts is drafted with."""
        return self

    @abc.abstractmethod
    def grow(
        self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Bool[Array, " B"]
    ) -> tuple[DraftTree, Frontier]:
        """Adds the next level to the `active` rows, and says what to expand after it.

        Without `prunes`, every live child that `propose` gives goes into the tree, in its order among its siblings, or
        is left out for a reason other than its token or its own value.

        Returns:
            The tree with nodes at slots below `size`, each after its parent (`tree.add_nodes`); and a frontier of them,
            its level one deeper, as wide after every level. The root's frontier alone may differ: it is 1 wide.
        """

    def prune(self, tree: DraftTree) -> Selection | None:
        """The nodes to verify, at most `verified`, live ones first; None: all. Asked only where the rule allows it."""
        return None
