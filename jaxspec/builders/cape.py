"""CAPE's tree (Du et al., GLIDE with a CaPE, arXiv:2402.02082), as EDD's paper describes it (appendix A)."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp

from jaxspec.decoding.builder import Grown, TreeBuilder
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, add_nodes, take

WIDTHS = ((0.3, 7), (0.6, 5), (0.8, 3), (1.0, 1))  # (upper bound of the top probability, number of children)
MOST = max(width for _, width in WIDTHS)


@final
@dataclasses.dataclass(frozen=True)
class Cape(TreeBuilder):
    """CAPE: a path with siblings, fewer if the draft is confident.

    Each level consists of children of the first, most probable node of the level above. Their number depends on the
    largest of their probabilities, p: 7 for p <= 0.3, 5 for p <= 0.6, 3 for p <= 0.8, otherwise 1.
    """

    name: ClassVar[str] = "cape"
    prunes: ClassVar[bool] = True
    varies: ClassVar[bool] = True
    depth: int = 5

    def __post_init__(self) -> None:
        self.require(depth=1)

    @property
    def size(self) -> int:
        return 1 + MOST * self.depth

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        proposal = propose(MOST)
        first = lambda values: values[:, 0]  # the frontier is one node wide
        offered = proposal.token.shape[2]  # fewer in a small vocabulary
        top = jnp.exp(proposal.log_prob[..., 0])
        bounds, widths = zip(*WIDTHS, strict=True)
        width = jnp.array(widths)[(top > jnp.array(bounds[:-1], jnp.float32)).sum(axis=1)]
        live = first(proposal.live) & (jnp.arange(offered) < width[:, None]) & (frontier.live & active[:, None])
        log_confidence = take(tree.log_confidence, frontier.node) + first(proposal.log_prob)
        slots = 1 + frontier.level * MOST + jnp.arange(offered, dtype=jnp.int32)
        parent = jnp.broadcast_to(frontier.node, live.shape)
        tree = add_nodes(tree, slots, first(proposal.token), parent, log_confidence, live)
        return tree, Frontier(node=frontier.node * 0 + slots[0], live=live[:, :1], level=frontier.level + 1)
