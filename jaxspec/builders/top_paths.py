"""What EAGLE-2 and similar trees share: expand the top paths level by level, and keep the top nodes.

Nodes are ranked by the confidence of their path. A child's confidence is never above its parent's, and parents have
lower indices. So if the top nodes are kept, and ties go to the lower index, every kept node has its parent.
"""

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Selection, add_nodes, take


@dataclasses.dataclass(frozen=True)
class TreeLimits:
    """What such a tree needs while it grows.

    Attributes:
        branching: children of an expanded node.
        frontier: nodes expanded at once, at most.
        depth: levels.
        total: nodes verified, the root included. A level keeps only those that can still be among them.
    """

    branching: int
    frontier: int
    depth: int
    total: int

    @property
    def first_level(self) -> int:
        """Nodes right below the root, at most."""
        return min(self.branching, self.per_level)

    @property
    def per_level(self) -> int:
        """Nodes that another level adds, at most."""
        return min(self.frontier * self.branching, max(self.total - 1, self.frontier))

    @property
    def size(self) -> int:
        """Nodes of all levels, the root included."""
        return 1 + self.first_level + (self.depth - 1) * self.per_level

    @property
    def verified(self) -> int:
        return min(self.total, self.size)


class TopPaths(TreeBuilder):
    """A builder whose trees grow within `limits`."""

    prunes: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def limits(self) -> TreeLimits:
        """What its settings come to."""

    @property
    def size(self) -> int:
        return self.limits.size

    @property
    def verified(self) -> int:
        return self.limits.verified


def widest(branching: int, depth: int, most: int) -> int:
    """Nodes that a level above the last can have, if that is less than `most`."""
    levels = depth - 1
    return most if levels * math.log(branching) > math.log(most) else max(1, min(most, branching**levels))


def add_level(
    limits: TreeLimits, propose: Propose, tree: DraftTree, frontier: Frontier, active: Bool[Array, " B"]
) -> tuple[DraftTree, Frontier]:
    """Adds a level to the `active` rows; the new frontier has the top nodes of it, in falling order."""
    proposal = propose(limits.branching)
    batch, expanded, offered = proposal.token.shape
    live = proposal.live & frontier.live[..., None] & active[:, None, None]
    log_confidence = take(tree.log_confidence, frontier.node)[..., None] + proposal.log_prob

    def flat(values):
        return values.reshape(batch, expanded * offered)

    # The root has `first_level` children; the buffer's slots for later levels begin after those.
    count = min(limits.per_level, expanded * offered)
    score, best = jax.lax.top_k(flat(jnp.where(live, log_confidence, -jnp.inf)), count)

    def pick(values):
        return jnp.take_along_axis(flat(values), best, axis=1)

    parent = pick(jnp.broadcast_to(frontier.node[..., None], proposal.token.shape))
    first = jnp.where(frontier.level == 0, 1, 1 + limits.first_level + (frontier.level - 1) * limits.per_level)
    slots = first + jnp.arange(count)
    found = score > -jnp.inf
    tree = add_nodes(tree, slots, pick(proposal.token), parent, score, found)
    next_width = min(limits.frontier, count)
    node = jnp.broadcast_to(slots[:next_width], (batch, next_width))
    pad = [(0, 0), (0, limits.frontier - next_width)]
    return tree, Frontier(node=jnp.pad(node, pad), live=jnp.pad(found[:, :next_width], pad), level=frontier.level + 1)


def top_nodes(tree: DraftTree, count: int) -> tuple[Float[Array, "B M"], Int[Array, "B M"]]:
    """Of the M = `count` live nodes of highest log confidence, in falling order: it (-inf where none is left), and ids.

    The root, whose confidence is 1, is the first.
    """
    score, node = jax.lax.top_k(jnp.where(tree.live, tree.log_confidence, -jnp.inf), count)
    return score, node


def keep(tree: DraftTree, node: Int[Array, "B M"], wanted: Bool[Array, "B M"]) -> Selection:
    """The `wanted` ones of M nodes, parents before children."""
    size = tree.token.shape[1]
    order = jnp.sort(jnp.where(wanted, node, size), axis=1)
    live = order < size
    return Selection(node=jnp.where(live, order, 0), live=live)


def keep_top(tree: DraftTree, count: int) -> Selection:
    """The `count` nodes of highest confidence."""
    score, node = top_nodes(tree, count)
    return keep(tree, node, score > -jnp.inf)
