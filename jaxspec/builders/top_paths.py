"""The base of EAGLE-2 and similar trees: expands the top paths level by level, and keeps the top nodes.

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
    """The static sizes of such a tree.

    Attributes:
        branching: children of an expanded node.
        frontier: largest number of nodes expanded at once.
        depth: number of levels.
        total: number of verified nodes, the root included. A level stores only nodes that can still be among them.
    """

    branching: int
    frontier: int
    depth: int
    total: int

    @property
    def first_level(self) -> int:
        """Largest number of nodes in the first level."""
        return min(self.branching, self.per_level)

    @property
    def per_level(self) -> int:
        """Largest number of nodes in each further level."""
        return min(self.frontier * self.branching, max(self.total - 1, self.frontier))

    @property
    def size(self) -> int:
        """Largest number of nodes of all levels, the root included."""
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
        """The tree's sizes, from the builder's settings."""

    @property
    def size(self) -> int:
        return self.limits.size

    @property
    def verified(self) -> int:
        return self.limits.verified


def widest(branching: int, depth: int, most: int) -> int:
    """Largest number of nodes in a level above the last one, but at most `most`."""
    levels = depth - 1
    return most if levels * math.log(branching) > math.log(most) else max(1, min(most, branching**levels))


def add_level(
    limits: TreeLimits, propose: Propose, tree: DraftTree, frontier: Frontier, active: Bool[Array, " B"]
) -> tuple[DraftTree, Frontier]:
    """Adds a level to the `active` rows. The new frontier has the top nodes of this level, in falling order."""
    proposal = propose(limits.branching)
    batch, expanded, offered = proposal.token.shape
    live = proposal.live & frontier.live[..., None] & active[:, None, None]
    log_confidence = take(tree.log_confidence, frontier.node)[..., None] + proposal.log_prob

    def flat(values):
        return values.reshape(batch, expanded * offered)

    # Slots of later levels begin after the root's `first_level` children.
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
    """Log confidences and ids of the M = `count` most confident live nodes, in falling order; -inf if there are fewer.

    The root is the first, as its confidence is 1.
    """
    score, node = jax.lax.top_k(jnp.where(tree.live, tree.log_confidence, -jnp.inf), count)
    return score, node


def keep(tree: DraftTree, node: Int[Array, "B M"], wanted: Bool[Array, "B M"]) -> Selection:
    """The selection of the `wanted` ones among M nodes, parents before children."""
    size = tree.token.shape[1]
    order = jnp.sort(jnp.where(wanted, node, size), axis=1)
    live = order < size
    return Selection(node=jnp.where(live, order, 0), live=live)


def keep_top(tree: DraftTree, count: int) -> Selection:
    """The selection of the `count` most confident nodes."""
    score, node = top_nodes(tree, count)
    return keep(tree, node, score > -jnp.inf)
