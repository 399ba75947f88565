"""The cost of a round as a function of its drafted levels, which controllers compare with expected tokens."""

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import CostAware
from jaxspec.decoding.tree import Rows

LONGEST = 16  # most levels that a controller plans for; it stops deeper builders there
DISCOUNT = 0.98  # weight of each round relative to the next one, so that about fifty rounds count


@chex.dataclass(frozen=True)
class Density:
    """Discounted sums of verified nodes and of drafted levels; their ratio is a tree's density."""

    nodes: Float[Array, " B"]
    levels: Float[Array, " B"]


def chain_density(batch: int) -> Density:
    """The initial density: one node per level, as in a chain."""
    return Density(nodes=jnp.ones(batch, jnp.float32), levels=jnp.ones(batch, jnp.float32))


def count_density(density: Density, counts: RoundCounts) -> Density:
    """The density after another round; rows that drafted nothing keep theirs."""
    levels = jnp.asarray(counts.levels)
    kept = jnp.where(levels > 0, DISCOUNT, 1.0)
    return Density(nodes=kept * density.nodes + counts.verified, levels=kept * density.levels + levels)


class LengthPlanner(CostAware, Controller):
    """A controller that compares the costs of rounds of different lengths."""

    def beside_history(self, own_levels: int | None) -> "LengthPlanner":
        planner: Any = self  # a dataclass, as every strategy
        return dataclasses.replace(planner, own_levels=own_levels)

    def costs_by_length(self, builder: TreeBuilder, density: Density, unfinished: Rows) -> Float[Array, " lengths"]:
        """The cost of a round of 0, 1, ... levels with the recent density of trees; infinite beyond the builder's."""
        levels = jnp.arange(LONGEST + 1)
        densest = jnp.where(unfinished, density.nodes / density.levels, 1.0).max()
        nodes = jnp.minimum(1 + levels * densest, builder.verified)
        return jnp.where(levels <= builder.depth, self.round_cost(levels, nodes), jnp.inf)
