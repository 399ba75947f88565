"""The bases of EAGLE-2's and similar trees, which expand the top paths level by level and keep the top nodes.

Nodes are ranked by the confidence of their path. A child's confidence is never above its parent's, and parents have
lower indices. So if the top nodes are kept, and ties go to the lower index, every kept node has its parent.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.builder import Grown, TreeBuilder
from jaxspec.decoding.rule import Proposal, Propose
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, Selection, add_nodes, take


@dataclasses.dataclass(frozen=True)
class TreeLimits:
    """The static sizes of a tree of top paths. A level stores only nodes that can be among those to verify."""

    branching: int  # children of an expanded node
    frontier: int  # largest number of nodes expanded at once
    depth: int  # number of levels
    total: int  # number of verified nodes, the root included

    @property
    def first_level(self) -> int:
        """Largest number of nodes in the first level."""
        return min(self.branching, self.per_level)

    @property
    def per_level(self) -> int:
        """Largest number of nodes in each further level."""
        return min(self.frontier * self.branching, max(self.total - 1, self.frontier))


class TopPaths(TreeBuilder):
    """Expands the top paths level by level, and verifies the top nodes within `limits`."""

    prunes: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def limits(self) -> TreeLimits:
        """The tree's sizes, from the builder's settings."""

    @property
    def size(self) -> int:
        return 1 + self.limits.first_level + (self.limits.depth - 1) * self.limits.per_level

    @property
    def verified(self) -> int:
        return min(self.limits.total, self.size)

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        """Adds a level to the `active` rows. The new frontier has the top nodes of this level, in falling order."""
        limits, proposal = self.limits, propose(self.limits.branching)
        batch, expanded, offered = proposal.token.shape
        live = proposal.live & frontier.live[..., None] & active[:, None, None]
        log_confidence = take(tree.log_confidence, frontier.node)[..., None] + proposal.log_prob
        flat = lambda values: values.reshape(batch, expanded * offered)
        count = min(limits.per_level, expanded * offered)
        score, best = jax.lax.top_k(flat(jnp.where(live, log_confidence, -jnp.inf)), count)
        pick = lambda values: jnp.take_along_axis(flat(values), best, axis=1)
        parent = pick(jnp.broadcast_to(frontier.node[..., None], proposal.token.shape))
        # Slots of later levels begin after the root's `first_level` children.
        first = jnp.where(frontier.level == 0, 1, 1 + limits.first_level + (frontier.level - 1) * limits.per_level)
        slots = first + jnp.arange(count, dtype=jnp.int32)
        added = score > -jnp.inf
        tree = add_nodes(tree, slots, pick(proposal.token), parent, score, added)
        width = min(limits.frontier, count)
        node, pad = jnp.broadcast_to(slots[:width], (batch, width)), [(0, 0), (0, limits.frontier - width)]
        return tree, Frontier(node=jnp.pad(node, pad), live=jnp.pad(added[:, :width], pad), level=frontier.level + 1)

    def prune(self, tree: DraftTree) -> Selection:
        score, node = top_nodes(tree, self.verified)
        return keep(tree, node, score > -jnp.inf)


class ConfidencePower(TopPaths):
    """A builder that raises the probability of each node's first child to a power.

    A drafter learns the target's distribution, but greedy decoding always takes the target's first choice. So the most
    likely child of a node is accepted more often than the drafter predicts, and the other children about as often. A
    probability that the head estimates itself (`Proposal.estimated`) is not raised.

    Attributes:
        power: exponent above temperature 0. With 1 the estimated acceptance rate is the probability itself. It tends
            to be too low, because of the shared Gumbel noise (`rules/gumbel_coupling.py`).
        greedy_power: exponent at temperature 0.
    """

    power: float
    greedy_power: float

    def require_powers(self) -> None:
        """Raises ValueError if a power is not positive and finite."""
        self.require_that(lambda value: 0 < value < float("inf"), "be above 0, and finite", "power", "greedy_power")

    @property
    def at_temperature_0(self) -> "ConfidencePower":
        builder: Any = self  # a dataclass, as every strategy
        return dataclasses.replace(builder, power=self.greedy_power)

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        def propose_raised(count: int) -> Proposal:
            proposal = propose(count)
            if proposal.estimated:
                return proposal
            first = jnp.arange(proposal.log_prob.shape[-1]) == 0
            return dataclasses.replace(proposal, log_prob=proposal.log_prob * jnp.where(first, self.power, 1.0))

        return super().grow(propose_raised, tree, frontier, active)


def widest(branching: int, depth: int, most: int) -> int:
    """Largest number of nodes in a level above the last one, but at most `most`."""
    return min(most, branching ** (depth - 1))


def top_nodes(tree: DraftTree, count: int) -> tuple[Float[Array, "B M"], Int[Array, "B M"]]:
    """Log confidences and ids of the M = `count` most confident live nodes, the root first; -inf if there are fewer."""
    score, node = jax.lax.top_k(jnp.where(tree.live, tree.log_confidence, -jnp.inf), count)
    return score, node


def keep(tree: DraftTree, node: Int[Array, "B M"], wanted: Bool[Array, "B M"]) -> Selection:
    """The selection of those of M nodes that are `wanted`, parents before children."""
    size = tree.token.shape[1]
    order = jnp.sort(jnp.where(wanted, node, size), axis=1)
    live = order < size
    return Selection(node=jnp.where(live, order, 0), live=live)
