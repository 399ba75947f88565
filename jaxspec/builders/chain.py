"""One path: the classical draft of speculative decoding (Leviathan et al., arXiv:2211.17192)."""

import dataclasses
from typing import ClassVar

from jaxspec.decoding.tree import DraftTree, Frontier, add_nodes, keep_probs


@dataclasses.dataclass(frozen=True)
class Chain:
    """A single path of at most `length` drafted tokens; none at all, with length 0, is plain decoding."""

    prunes: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    length: int = 4

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"chain: length must not be negative, and is {self.length}")

    @property
    def depth(self) -> int:
        return self.length

    @property
    def size(self) -> int:
        return self.length + 1

    @property
    def verified(self) -> int:
        return self.size

    def grow(self, propose, tree, frontier, logits, going) -> tuple[DraftTree, Frontier]:
        proposal = propose(logits, 1)
        live = proposal.live[:, :, 0] & frontier.live & going[:, None]
        log_confidence = tree.log_confidence[:, frontier.level, None] + proposal.log_prob[:, :, 0]
        tree = keep_probs(tree, frontier, proposal.probs)
        slot = frontier.level + 1  # in a chain, node i is the one at depth i
        tree = add_nodes(tree, slot[None], proposal.token[:, :, 0], frontier.node, log_confidence, live)
        node = frontier.node * 0 + slot
        return tree, Frontier(node=node, live=live, level=slot)

    def prune(self, tree: DraftTree) -> DraftTree:
        return tree
