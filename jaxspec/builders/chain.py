"""One path: the classical draft of speculative decoding (Leviathan et al., arXiv:2211.17192)."""

import dataclasses
from typing import ClassVar, final

from jaxspec.decoding.builder import Grown, TreeBuilder
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, add_nodes


@final
@dataclasses.dataclass(frozen=True)
class Chain(TreeBuilder):
    """A single path of at most `length` tokens."""

    name: ClassVar[str] = "chain"
    length: int = 4  # 0: plain decoding

    def __post_init__(self) -> None:
        self.require(length=0)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def size(self) -> int:
        return self.length + 1

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        proposal = propose(1)
        live = proposal.live[:, :, 0] & frontier.live & active[:, None]
        log_confidence = tree.log_confidence[:, frontier.level, None] + proposal.log_prob[:, :, 0]
        slot = frontier.level + 1  # in a chain, node i is the one at depth i
        tree = add_nodes(tree, slot[None], proposal.token[:, :, 0], frontier.node, log_confidence, live)
        return tree, Frontier(node=frontier.node * 0 + slot, live=live, level=slot)
