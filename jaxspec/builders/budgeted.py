"""A tree that maximises expected tokens per second, by the measured verification cost of every tree size."""

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.builders.top_paths import ConfidencePower, TreeLimits, keep, top_nodes, widest
from jaxspec.decoding.builder import Grown
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.strategy import COST, FITTED, VERIFY, ContextCosts, CostAware, Ratios
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, Selection, levels, sizes_up_to, take


@final
@dataclasses.dataclass(frozen=True)
class Budgeted(CostAware, ConfidencePower):
    """The nodes that maximise expected tokens per second.

    A round that drafted D levels and verifies N nodes of each row has the rate

        rate(D, N) = Σ_rows (1 + Σ_{i < N} p_i) / (D · cost + verify(smallest compiled size that holds N))

    which is expected tokens, with the bonus tokens, per time in units of s_t(1). p_i is the confidence of a row's node
    i in falling order, the estimated probability that the path to it is accepted, so the first N nodes include their
    parents. The round verifies the N with the highest rate.

    Another level is drafted if some number of further levels is expected to raise the rate. The expectation assumes
    that a chain follows each node of the frontier, and that each token in it has the geometric mean probability of the
    tokens on the most confident path to the frontier. Looking only one level ahead is not enough: if two tokens take
    much longer to verify than one, but eight hardly longer than two, a single level never pays.

    The rows of a batch decide together, because a round takes as long as its deepest and largest tree.

    Attributes:
        width: largest number of nodes expanded at once, and children of each.
        depth: largest number of levels.
        total: largest number of verified nodes, the root included.
        power, greedy_power: see `ConfidencePower`.
        cost, verify: see `CostAware`; `verify` has every compiled tree size.
    """

    name: ClassVar[str] = "budgeted"
    varies: ClassVar[bool] = True
    width: int = 4
    depth: int = 10
    total: int = 64
    power: float = 1.0
    greedy_power: float = 0.3  # of 0.15, 0.3 and 0.5 the fastest with `edd` on an earlier builtin model
    cost: float | None = dataclasses.field(default=None, metadata=COST)
    verify: Ratios | None = dataclasses.field(default=None, metadata=VERIFY)
    contexts: tuple[ContextCosts, ...] = dataclasses.field(default=(), metadata=FITTED)

    def __post_init__(self) -> None:
        self.require(width=1, depth=1, total=2)
        self.require_powers()
        self.check_costs()

    @property
    def level_width(self) -> int:
        return self.width

    @property
    def limits(self) -> TreeLimits:
        frontier = widest(self.width, self.depth, min(self.width, self.total - 1))
        return TreeLimits(branching=self.width, frontier=frontier, depth=self.depth, total=self.total)

    @property
    def buckets(self) -> tuple[tuple[int, Any], ...]:
        """The compiled tree sizes, and the cost of each."""
        _, verify = self.known_costs
        enough = lambda size: next((cost for nodes, cost in verify if nodes >= size), verify[-1][1])
        return tuple((size, enough(size)) for size in sizes_up_to(self.verified, [nodes for nodes, _ in verify]))

    def expected(self, log_confidence: Float[Array, "B M"]) -> Float[Array, "B sizes"]:
        """The expected tokens of each row by compiled size, from log confidences in falling order, the root first."""
        full = jnp.array([size for size, _ in self.buckets])
        return jnp.cumsum(jnp.exp(log_confidence), axis=1)[:, full - 1]

    def rates(self, expected: Float[Array, "B sizes"], rows: Rows, drafted: Int[Array, ""]) -> Float[Array, " sizes"]:
        """The rate of each compiled size, over the chosen rows, after `drafted` levels."""
        level, verify = self.known_costs[0], jnp.array([cost for _, cost in self.buckets], jnp.float32)
        return jnp.where(rows[:, None], expected, 0.0).sum(axis=0) / (drafted * level + verify)

    @property
    def lookahead(self) -> Int[Array, " lookahead"]:
        """Numbers of levels to look ahead."""
        return jnp.arange(1, max(self.depth, 2))

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        tree, reached = super().grow(propose, tree, frontier, active)
        score, _ = top_nodes(tree, self.verified)
        confidence = jnp.where(reached.live, take(tree.log_confidence, reached.node), -jnp.inf)
        rows = active | (levels(tree) > 0)
        now = self.rates(self.expected(score), rows, reached.level)

        def after(more: Int[Array, ""]) -> Float[Array, " sizes"]:
            rates = self.rates(self.expected_after(score, confidence, reached.level, more), rows, reached.level + more)
            return jnp.where(reached.level + more <= self.depth, rates, -jnp.inf)

        pays = jax.vmap(after)(self.lookahead).max() > now.max()
        return tree, dataclasses.replace(reached, live=reached.live & pays)

    def expected_after(
        self,
        log_confidence: Float[Array, "B M"],
        reached: Float[Array, "B W"],
        level: Int[Array, ""],
        more: Int[Array, ""],
    ) -> Float[Array, "B sizes"]:
        """The expected tokens after `more` levels below a frontier at `level` with the log confidences `reached`."""
        mean = reached[:, :1] / level  # mean log probability of a token on the best path
        below = reached[..., None] + self.lookahead * mean[..., None]
        below = jnp.where(self.lookahead <= more, below, -jnp.inf).reshape(len(reached), -1)
        return self.expected(jax.lax.top_k(jnp.concatenate([log_confidence, below], axis=1), self.verified)[0])

    def prune(self, tree: DraftTree) -> Selection:
        score, node = top_nodes(tree, self.verified)
        drafted, sizes = levels(tree), jnp.array([size for size, _ in self.buckets])
        most = sizes[self.rates(self.expected(score), drafted > 0, drafted.max()).argmax()]
        return keep(tree, node, (score > -jnp.inf) & (jnp.arange(self.verified) < most))
