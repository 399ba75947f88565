"""EAGLE-2's dynamic tree (arXiv:2406.16858): expand the likeliest paths, and keep the likeliest nodes."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxspec.tree import DraftTree, Frontier, add, select, take


@dataclasses.dataclass(frozen=True)
class Eagle2:
    """Each level expands the `width` likeliest nodes of the one above; of all, the `total` - 1 likeliest are kept.

    Likeliest by the confidence of the path. Each expanded node has `width` children, of which a level keeps those that
    can still be among the likeliest.

    Attributes:
        total: nodes verified, the root included.
        depth: levels.
    """

    prunes: ClassVar[bool] = True
    total: int = 60
    depth: int = 6
    width: int = 10

    def __post_init__(self) -> None:
        for name, least in (("total", 2), ("depth", 1), ("width", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"eagle2: {name} must be at least {least}, and is {getattr(self, name)}")

    @property
    def per_level(self) -> int:
        """Nodes that a level adds at most."""
        return min(self.width**2, max(self.total - 1, self.width))

    @property
    def size(self) -> int:
        return 1 + self.width + (self.depth - 1) * self.per_level

    @property
    def verified(self) -> int:
        return min(self.total, self.size)

    def grow(self, propose, tree, frontier, logits, going) -> tuple[DraftTree, Frontier]:
        proposal = propose(logits, self.width)
        batch, expanded, offered = proposal.token.shape
        live = proposal.live & frontier.live[..., None] & going[:, None, None]
        log_confidence = take(tree.log_confidence, frontier.node)[..., None] + proposal.log_prob
        flat = lambda values: values.reshape(batch, expanded * offered)
        # The root has `width` children at most; the buffer's slots for later levels begin after those.
        count = min(self.per_level, expanded * offered)
        score, best = jax.lax.top_k(flat(jnp.where(live, log_confidence, -jnp.inf)), count)
        pick = lambda values: jnp.take_along_axis(flat(values), best, axis=1)
        parent = pick(jnp.broadcast_to(frontier.node[..., None], proposal.token.shape))
        first = jnp.where(frontier.level == 0, 1, 1 + self.width + (frontier.level - 1) * self.per_level)
        slots = first + jnp.arange(count)
        found = score > -jnp.inf
        tree = add(tree, slots, pick(proposal.token), parent, score, found)
        next_width = min(self.width, count)
        node = jnp.broadcast_to(slots[:next_width], (batch, next_width))
        pad = [(0, 0), (0, self.width - next_width)]
        onward = Frontier(node=jnp.pad(node, pad), live=jnp.pad(found[:, :next_width], pad), level=frontier.level + 1)
        return tree, onward

    def prune(self, tree: DraftTree) -> DraftTree:
        # A child is never likelier than its parent, and of equals top_k takes the first: so parents come with children.
        # The root's confidence is 1.
        score, node = jax.lax.top_k(jnp.where(tree.live, tree.log_confidence, -jnp.inf), self.verified)
        node = jnp.where(score > -jnp.inf, node, tree.token.shape[1])
        order = jnp.sort(node, axis=1)
        live = order < tree.token.shape[1]
        return select(tree, jnp.where(live, order, 0), live)
