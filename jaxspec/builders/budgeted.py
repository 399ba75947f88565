"""A tree that is worth its time on the device in use: beyond PCT, with the whole table of what verification costs."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.builders import likeliest
from jaxspec.builders.likeliest import Room
from jaxspec.costs import CostTable, Ratios, read_ratio, read_ratios, round_ratio, show_ratio, show_ratios
from jaxspec.tree import DraftTree, Frontier, levels, sizes, take


@dataclasses.dataclass(frozen=True)
class Budgeted:
    """The nodes that give most tokens a second: their number follows the draft's confidence and the device's costs.

    A round that drafted D levels and verifies the kept nodes K is worth

        rate(D, K) = (1 + Σ_{i in K} confidence of path i) / (D · cost + verify(smallest compiled size that holds K))

    expected tokens, the bonus token included, by time in forwards of the target over one token. Of all sets that hold
    the parents of their nodes, the one kept has the highest rate: the likeliest nodes, as many as fill the best size.
    Drafting is over by then, but its time counts.

    A row drafts on while the next level is expected to raise the rate: were each node of the frontier to have one
    child, as likely, given its parent, as the tokens of the likeliest path to the frontier are on (geometric) average.

    Each row decides as if it were alone.

    Attributes:
        width: nodes expanded at once, and children of each.
        depth: levels, at most.
        total: nodes verified at most, the root included.
        cost: s_d / s_t(1), the time of a drafted level; None: as measured on the device in use.
        verify: s_t(n) / s_t(1) by n, for every tree size that is compiled; None: as measured.
    """

    prunes: ClassVar[bool] = True
    varies: ClassVar[bool] = True
    width: int = 4
    depth: int = 10
    total: int = 64
    cost: float | None = dataclasses.field(default=None, metadata={"parse": read_ratio, "show": show_ratio})
    verify: Ratios | None = dataclasses.field(default=None, metadata={"parse": read_ratios, "show": show_ratios})

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("depth", 1), ("total", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"budgeted: {name} must be at least {least}, and is {getattr(self, name)}")

    @property
    def needs_costs(self) -> bool:
        return self.cost is None or self.verify is None

    def with_costs(self, table: CostTable) -> "Budgeted":
        """The same with those of `cost` and `verify` measured that are not given."""
        cost = round_ratio(table.level_cost(self.width)) if self.cost is None else self.cost
        measured = tuple((nodes, round_ratio(seconds / table.plain)) for nodes, seconds in table.verify)
        return dataclasses.replace(self, cost=cost, verify=measured if self.verify is None else self.verify)

    @property
    def room(self) -> Room:
        frontier = likeliest.widest(self.width, self.depth, min(self.width, self.total - 1))
        return Room(branching=self.width, frontier=frontier, depth=self.depth, total=self.total)

    @property
    def size(self) -> int:
        return self.room.size

    @property
    def verified(self) -> int:
        return self.room.verified

    @property
    def buckets(self) -> Ratios:
        """The sizes that verification is compiled for, and the cost of each."""
        if self.cost is None or self.verify is None:
            raise ValueError(
                "budgeted: its costs are not measured yet; give cost= and verify=, or let an Engine measure"
            )
        enough = lambda size: next((cost for nodes, cost in self.verify or () if nodes >= size), self.verify[-1][1])
        return tuple((size, enough(size)) for size in sizes(self.verified, [nodes for nodes, _ in self.verify]))

    def rates(self, log_confidence: Float[Array, "B M"], drafted: Int[Array, " B"]) -> Float[Array, "B K"]:
        """Of each size, filled with the likeliest: of M nodes in falling order, the root the first."""
        full, cost = zip(*self.buckets, strict=True)
        expected = jnp.cumsum(jnp.exp(log_confidence), axis=1)[:, jnp.array(full) - 1]
        return expected / (drafted[:, None] * self.cost + jnp.array(cost))

    def grow(self, propose, tree, frontier, logits, going) -> tuple[DraftTree, Frontier]:
        tree, onward = likeliest.grow(self.room, propose, tree, frontier, logits, going)
        drafted = jnp.broadcast_to(onward.level, going.shape)
        score, _ = likeliest.ranked(tree, self.verified)
        reached = jnp.where(onward.live, take(tree.log_confidence, onward.node), -jnp.inf)
        children = reached + reached[:, :1] / drafted[:, None]  # the frontier begins with its likeliest node
        hoped = jax.lax.top_k(jnp.concatenate([score, children], axis=1), self.verified)[0]
        pays = self.rates(hoped, drafted + 1).max(axis=1) > self.rates(score, drafted).max(axis=1)
        return tree, dataclasses.replace(onward, live=onward.live & pays[:, None])

    def prune(self, tree: DraftTree) -> DraftTree:
        score, node = likeliest.ranked(tree, self.verified)
        sizes = jnp.array([size for size, _ in self.buckets])
        most = sizes[self.rates(score, levels(tree)).argmax(axis=1)]
        return likeliest.keep(tree, node, (score > -jnp.inf) & (jnp.arange(self.verified) < most[:, None]))
