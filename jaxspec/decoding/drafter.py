"""The interface of drafters, and the records that the loop passes to them."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.strategy import Strategy
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV, enlarge
from jaxspec.model.llama import Llama, Output, forward

State = Any  # a pytree of arrays, whatever the strategy needs
FLOAT32 = jnp.dtype("float32")


@chex.dataclass(frozen=True)
class Models:
    """The weights of a run: the target, what the drafter brought, and what the controller did (None: no weights)."""

    target: Llama
    draft: Any
    control: Any = None


@chex.dataclass(frozen=True)
class Prefix:
    """The committed sequence, as drafting sees it. The root is the token at `length` - 1, and not yet in the cache."""

    token: Int[Array, "B S"]
    length: Int[Array, " B"]
    cache: tuple[KV, ...]  # the target's, `length` - 1 rows of it
    unfinished: Bool[Array, " B"] | None = None  # rows whose text goes on; None: all


@chex.dataclass(frozen=True)
class Committed:
    """Positions that became certain, and what the target computed there; `count` of the T are valid.

    Where count is 0, `start` lies past everything committed, so that a block written there harms nothing.
    """

    start: Int[Array, " B"]  # position of token[:, 0]
    count: Int[Array, " B"]
    token: Int[Array, "B T"]
    next_token: Int[Array, "B T"]  # the one after; the last valid one is the new root
    hidden: Float[Array, "B T D"]  # the target's feature at `token`
    taps: tuple[Float[Array, "B T D"], ...]  # inputs of the layers that `Drafter.taps` names, in its order

    @property
    def position(self) -> Int[Array, "B T"]:
        """Of each token, from 0."""
        return self.start[:, None] + jnp.arange(self.token.shape[1])


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """The shape of a drafter's weights.

    Attributes:
        model: of its decoder layers; vocabulary and hidden size are the target's.
        settings: what else decides it, ready for JSON.
    """

    model: LlamaConfig
    settings: Mapping[str, Any]


class Drafter(Strategy):
    """Proposes continuations of a tree's nodes.

    Its state goes from `init` through rounds of `root`, any number of `expand` and `observe`. Its pytree structure,
    shapes and dtypes are the same after `init` and after every `observe`, and the same after `root` and after every
    `expand`: what is of one round alone, such as keys and values of its nodes, is None before `root` adds it.

    Attributes:
        rank: of drafters with weights, where no method is named the lowest whose head is there runs; None: never.
        has_head: it brings weights of its own, in a head.
        abstains: it may propose nothing after a node, by logits of -inf.
        default_builder: what builds its trees where users type no builder, in their form.
        reuses_drafting: `target_forward` goes on from what drafting computed, and so takes a time of its own.
    """

    rank: ClassVar[int | None] = None
    has_head: ClassVar[bool] = False
    abstains: ClassVar[bool] = False
    default_builder: ClassVar[str] = "chain"
    reuses_drafting: ClassVar[bool] = False

    @property
    def levels_at_once(self) -> int | None:
        """The number of levels that one pass drafts, and that a tree has at most. None: each level takes a pass."""
        return None

    # --- its weights

    def head_for(self, target: LlamaConfig) -> HeadShape:
        """The head for a target, with its paper's settings; parameters of its own change those."""
        raise ValueError(f"{self.name} has no head")

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> Any:
        """A head of this shape with random weights; under `nnx.eval_shape`, what weights are restored into."""
        raise ValueError(f"{self.name} has no head")

    def fitted(self, draft: Any) -> "Drafter":
        """The same drafter, with settings reduced to what its weights allow."""
        return self

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        """Raises ValueError, saying why, where a head of this shape does not fit the target."""

    # --- its part in the loop

    def taps(self, models: Models) -> tuple[int, ...]:
        """Target layers whose inputs `observe` wants."""
        return ()

    def init(self, models: Models, batch: int, rows: int) -> State:
        """State for `batch` sequences of up to `rows` tokens."""
        return ()

    def enlarge(self, state: State, rows: int) -> State:
        """The same state, between rounds, with room for `rows` tokens. The given one is not used again.

        The default enlarges every KV cache in it, and deletes what it was.
        """

        def is_kv(leaf):
            return isinstance(leaf, KV)

        return jax.tree.map(lambda leaf: enlarge((leaf,), rows)[0] if is_kv(leaf) else leaf, state, is_leaf=is_kv)

    def observe(self, models: Models, state: State, committed: Committed) -> State:
        """Learns verified tokens: a chunk of the prompt, or a round's accepted path."""
        return state

    def root(self, models: Models, state: State, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, State]:
        """What follows the root (W = 1). What the last round drafted is forgotten."""
        return self.expand(models, state, prefix, tree, root_frontier(tree.token.shape[0]))

    @abc.abstractmethod
    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, State]:
        """What follows each of the W nodes of the frontier."""

    def from_history(self, state: State, batch: int) -> Bool[Array, " B"]:
        """Rows that copy earlier text in this round. Controllers do not stop these rows, and do not learn from them."""
        return jnp.zeros(batch, bool)

    def target_forward(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, slots: Int[Array, "B N"], leaves: int
    ) -> Output:
        """The target over all nodes of a tree; inside a branch of the loop, so that it must not return a cache.

        Args:
            state: as drafting left it; as `observe` did where a tree has no levels.
            slots: where each node stood in the tree that was drafted.
            leaves: live nodes that were never expanded, at most, in any row.

        Returns:
            Hidden states after the final norm, keys and values of each layer, and the taps in the order of `taps`, all
            of the nodes in the tree's order.
        """
        return forward(
            models.target, tree.token, positions(prefix, tree.depth), tree.ancestors, prefix.cache, prefix.length - 1,
            taps=self.taps(models),
        )  # fmt: skip


def positions(prefix: Prefix, depth: Int[Array, "B W"]) -> Int[Array, "B W"]:
    """Rotary positions of nodes at these depths."""
    return prefix.length[:, None] - 1 + depth


def slots_of(tree: DraftTree, frontier: Frontier) -> Int[Array, "B W"]:
    """Where to keep what is computed of a frontier's nodes; outside of the N slots where a node is not live."""
    return jnp.where(frontier.live, frontier.node, tree.token.shape[1])


def last_valid(values: Float[Array, "B T D"], count: Int[Array, " B"]) -> Float[Array, "B D"]:
    """The last of the first `count` rows; the first, where count is 0."""
    return take(values, jnp.maximum(count - 1, 0)[:, None])[:, 0]
