"""PCT, the pruned candidate tree of EDD (section 3.2; Faster Speculative Decoding via Effective Draft Decoder).

A node is accepted with about the probability p that the draft assigns to its path. Drafting below it costs s_d and
saves s_t with probability p, so it pays if p >= s_d / s_t (Eq. 5).
"""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp

from jaxspec.builders.top_paths import ConfidencePower, TreeLimits, widest
from jaxspec.decoding.builder import Grown
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.strategy import COST, MOST, CostTable, round_ratio
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, Selection, take

TOTAL = 64


@final
@dataclasses.dataclass(frozen=True)
class Pruned(ConfidencePower):
    """PCT: expands likely paths and drops unlikely nodes.

    It expands paths whose confidence is at least `cost`, and drops nodes whose confidence is below `leaf`. At most
    1 / cost nodes of a level are expanded, because their probabilities sum to at most 1, and at most `total` - 1,
    because no more can be kept. With a power below 1 more nodes may qualify; then the most confident are expanded.

    Attributes:
        width: children of an expanded node.
        depth: largest number of levels.
        leaf: smallest confidence of a verified node. 0: every drafted node is verified (the paper's ablation, Table 3).
        cost: s_d / s_t, the time of a drafted level in units of s_t(1); None: measured on the device.
        total: largest number of verified nodes, the root included: the most confident, and among equal ones the less
            deep. Not used with `leaf` 0.
        power, greedy_power: see `ConfidencePower`; with 1 the confidences are the paper's.
    """

    name: ClassVar[str] = "pruned"
    varies: ClassVar[bool] = True
    width: int = 5
    depth: int = 10
    leaf: float = 0.01
    cost: float | None = dataclasses.field(default=None, metadata=COST)
    total: int = TOTAL
    power: float = 1.0
    greedy_power: float = 1.0

    def __post_init__(self) -> None:
        self.require(width=1, depth=1, total=2)
        self.require_powers()
        self.require_that(lambda value: 0 <= value <= 1, "be a probability, from 0 to 1", "leaf")
        if self.leaf == 0 and self.total != TOTAL:
            raise ValueError(
                f"pruned: leaf=0 verifies every drafted node, so total={self.total} has no meaning; leave one out"
            )

    @property
    def needs_costs(self) -> bool:
        return self.cost is None

    def with_costs(self, table: CostTable) -> "Pruned":
        """A missing `cost` is that of a level of w nodes, for the smallest w that holds the 1 / cost expanded nodes."""
        if self.cost is not None:
            return self
        costs = [table.level_cost(width) for width in range(1, table.level[-1][0] + 1)]
        cost = next((cost for width, cost in enumerate(costs, 1) if int(1 / cost) <= width), costs[-1])
        return dataclasses.replace(self, cost=round_ratio(cost))

    @property
    def limits(self) -> TreeLimits:
        total = self.total if self.leaf > 0 else MOST
        worth_it = 1 / self.cost if self.cost else self.total  # may be infinite
        most = max(1, int(min(worth_it, total - 1)))
        frontier = widest(self.width, self.depth, most)
        return TreeLimits(branching=self.width, frontier=frontier, depth=self.depth, total=total)

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        if self.cost is None:
            raise ValueError(
                "pruned: its cost is not measured yet; give cost=, or use Engine.calibrated, which measures it"
            )
        tree, reached = super().grow(propose, tree, frontier, active)
        worth_it = jnp.exp(take(tree.log_confidence, reached.node)) >= self.cost
        return tree, dataclasses.replace(reached, live=reached.live & worth_it)

    def prune(self, tree: DraftTree) -> Selection:
        likely = jnp.exp(tree.log_confidence) >= self.leaf
        return super().prune(dataclasses.replace(tree, live=tree.live & likely))
