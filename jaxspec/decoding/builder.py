"""What a tree builder is."""

from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float

from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier


@runtime_checkable
class TreeBuilder(Protocol):
    """Decides which nodes a tree gets."""

    prunes: ClassVar[bool]  # drops nodes by their own value: sound for candidates, never for sampled children
    varies: ClassVar[bool]  # how many nodes it leaves depends on the text, even where every row drafts to full depth

    @property
    def size(self) -> int:
        """Nodes while growing, root included."""
        ...

    @property
    def verified(self) -> int:
        """Most nodes left after `prune`, root included."""
        ...

    @property
    def depth(self) -> int:
        """Most levels below the root."""
        ...

    def grow(
        self,
        propose: Propose,
        tree: DraftTree,
        frontier: Frontier,
        logits: Float[Array, "B W V"],
        going: Bool[Array, " B"],
    ) -> tuple[DraftTree, Frontier]:
        """Adds the next level to the rows that are `going`, and says what to expand after it."""
        ...

    def prune(self, tree: DraftTree) -> DraftTree:
        """At most `verified` nodes; where the builder `prunes`, live ones first."""
        ...


def is_chain(builder: TreeBuilder) -> bool:
    """Whether all its trees are single paths, which have one leaf and no gaps."""
    return builder.size == builder.depth + 1
