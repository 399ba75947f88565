"""The cost of a round as a function of its drafted levels, which controllers compare with expected tokens."""

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import CostAware

LONGEST = 16  # most levels that a controller plans for; it stops deeper builders there
DISCOUNT = 0.98  # weight of each round relative to the next one, so that about fifty rounds count


@chex.dataclass(frozen=True)
class Density:
    """Discounted sums of verified nodes and of drafted levels; their ratio is a tree's density."""

    nodes: Float[Array, " B"]
    levels: Float[Array, " B"]


def chain_density(batch: int) -> Density:
    """The initial density: one node per level, as in a chain."""
    return Density(nodes=jnp.ones(batch), levels=jnp.ones(batch))


def count_density(density: Density, counts: RoundCounts) -> Density:
    """The density after another round; rows that drafted nothing keep theirs."""
    levels = jnp.asarray(counts.levels)
    kept = jnp.where(levels > 0, DISCOUNT, 1.0)
    return Density(nodes=kept * density.nodes + counts.verified, levels=kept * density.levels + levels)


class LengthPlanner(CostAware, Controller):
    """A controller that compares the costs of rounds of different lengths."""

    own_levels: int | None  # as in `beside_history`

    def beside_history(self, own_levels: int | None) -> "LengthPlanner":
        planner: Any = self  # a dataclass, as every strategy
        return dataclasses.replace(planner, own_levels=own_levels)

    def round_cost(self, levels: Int[Array, "*lengths"], nodes: Float[Array, "*lengths"]) -> Float[Array, "*lengths"]:
        """The cost of rounds with these numbers of levels and of verified nodes per row (the root included), in s_t(1).

        Verification costs as much as the smallest size in the table that holds a row's nodes; beyond the table it is
        extrapolated from the last two sizes.
        """
        # At least one level is counted, because the loop always drafts after the root.
        level, table = self.known
        sizes, costs = (jnp.array(column, jnp.float32) for column in zip(*table, strict=True))
        slope = jnp.maximum(costs[-1] - costs[-2], 0) / (sizes[-1] - sizes[-2]) if len(table) > 1 else 0.0
        fits = sizes >= nodes[..., None] - 1e-3
        beyond = costs[-1] + slope * (nodes - sizes[-1])
        verification = jnp.where(fits.any(axis=-1), costs[fits.argmax(axis=-1)], beyond)
        passes = levels if self.own_levels is None else jnp.minimum(levels, self.own_levels)
        return jnp.maximum(passes, 1) * level + verification

    def costs_by_length(
        self, builder: TreeBuilder, density: Density, unfinished: Bool[Array, " B"]
    ) -> Float[Array, " lengths"]:
        """The cost of a round of 0, 1, ... levels with the recent density of trees; infinite beyond the builder's."""
        levels = jnp.arange(LONGEST + 1)
        densest = jnp.where(unfinished, density.nodes / density.levels, 1.0).max()
        nodes = jnp.minimum(1 + levels * densest, builder.verified)
        return jnp.where(levels <= builder.depth, self.round_cost(levels, nodes), jnp.inf)
