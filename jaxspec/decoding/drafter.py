"""The interface of drafters, and the records that the loop passes to them."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.models import Models
from jaxspec.decoding.strategy import Strategy
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, root_frontier, take
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV, enlarge
from jaxspec.model.llama import Output, forward


@chex.dataclass(frozen=True)
class Drafts:
    """Distributions of the token after each of W nodes: one for each node (Q = W), or one for all (Q = 1).

    If `token` is None they are over the whole vocabulary (C = V). Otherwise they are over C candidates. Candidates with
    logit -inf are padding and are never proposed. All others in a row have different ids.
    """

    logits: Float[Array, "B Q C"]  # with `token`: log-probabilities of the candidates, whose sum may be below 1
    token: Int[Array, "#B #Q C"] | None = None  # ids of the candidates: one list for all, or one per distribution
    hidden: Float[Array, "B Q E"] | None = None  # hidden states that gave the logits; None: the drafter has none
    log_accept: Float[Array, "B Q"] | None = None
    """Log of the head's estimate of P(the first proposed token is accepted | all before it are); None: none."""
    log_mass: Float[Array, "B Q"] | None = None  # without `token`: log of P(a proposed token follows); None: 0


def of_node(values: Array, slot: Int[Array, "B 1"]) -> Array:
    """The values [B ...] of the node at `slot` of the frontier, from values [B Q ...]."""
    if values.shape[1] == 1:
        return values[:, 0]
    index = slot.reshape(slot.shape + (1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1, mode="promise_in_bounds")[:, 0]


def log_mass(drafts: Drafts) -> Float[Array, "B Q 1"] | float:
    """Log of the probability that one of the proposed tokens follows; below 0 if another token may follow."""
    if drafts.token is not None:
        return jax.nn.logsumexp(drafts.logits.astype(jnp.float32), axis=-1, keepdims=True)
    return 0.0 if drafts.log_mass is None else drafts.log_mass[..., None]


def log_top(drafts: Drafts, slot: Int[Array, "B 1"]) -> Float[Array, " B"]:
    """Log of the largest probability after the node at `slot` of the frontier, at temperature 1."""
    logits = of_node(drafts.logits, slot).astype(jnp.float32)
    if drafts.token is not None:  # logits of candidates are log-probabilities
        return logits.max(axis=-1)
    log_mass = 0.0 if drafts.log_mass is None else of_node(drafts.log_mass, slot)
    return logits.max(axis=-1) - jax.nn.logsumexp(logits, axis=-1) + log_mass


def for_each(values: Array, width: int) -> Array:
    """Broadcasts values [B Q ...] to [B W ...]."""
    return jnp.broadcast_to(values, (values.shape[0], width, *values.shape[2:]))


State = Any  # a strategy's pytree of arrays
FLOAT32 = jnp.dtype("float32")


@chex.dataclass(frozen=True)
class Prefix:
    """The committed sequence. The root is the token at `length` - 1; it is not in the cache yet."""

    token: Int[Array, "B S"]
    length: Int[Array, " B"]
    cache: tuple[KV, ...]  # the target's; `length` - 1 rows are valid
    unfinished: Bool[Array, " B"] | None = None  # rows that are not finished; None: all


@chex.dataclass(frozen=True)
class Committed:
    """Newly verified tokens, and the target's results for them; `count` of the T are valid.

    If count is 0, `start` lies past all committed rows, so that writing a block there does no harm.
    """

    start: Int[Array, " B"]  # position of token[:, 0]
    count: Int[Array, " B"]
    token: Int[Array, "B T"]
    next_token: Int[Array, "B T"]  # the token after each; the last valid one is the new root
    hidden: Float[Array, "B T D"]  # the target's feature at `token`
    taps: tuple[Float[Array, "B T D"], ...]  # inputs of the layers `Drafter.taps`, in its order

    @property
    def position(self) -> Int[Array, "B T"]:
        """Position of each token, from 0."""
        return self.start[:, None] + jnp.arange(self.token.shape[1])


@dataclasses.dataclass(frozen=True)
class HeadShape:
    """The shape of a drafter's weights.

    Attributes:
        model: shape of its decoder layers. Vocabulary and, in most heads, hidden size are the target's.
        settings: its other settings, as JSON values.
    """

    model: LlamaConfig
    settings: Mapping[str, Any]


class Drafter(Strategy):
    """Proposes continuations of a tree's nodes.

    The calls are `init`, `observe` for each chunk of the prompt, and then in each round `root`, `widen`, any number of
    `expand`, and `observe`. The state has one pytree structure (with shapes and dtypes) after `init` and `observe`, and
    one after `widen` and `expand`. State of a single round, such as keys and values of its nodes, is None outside of
    it; `root` adds it.

    Attributes:
        rank: order in the choice of the default method: the lowest whose head exists is chosen; None: never.
        has_head: it has weights of its own, in a head.
        abstains: it may propose no token after a node, by logits of -inf.
        default_builder: the builder of a method that names none, as it is written in a method's name.
        reuses_drafting: `target_forward` reuses results of drafting, so its time differs from a plain forward's.
    """

    rank: ClassVar[int | None] = None
    has_head: ClassVar[bool] = False
    abstains: ClassVar[bool] = False
    default_builder: ClassVar[str] = "chain"
    reuses_drafting: ClassVar[bool] = False

    @property
    def levels_at_once(self) -> int | None:
        """Number of levels that one pass drafts, also the largest depth of a tree; None: one pass per level."""
        return None

    def own_levels(self, draft: Any) -> int | None:
        """Largest number of levels that these weights draft; None: any number."""
        return self.levels_at_once

    # --- its weights

    def head_for(self, target: LlamaConfig) -> HeadShape:
        """The shape of a head for a target, with the paper's settings. Subclasses add parameters for other settings."""
        raise ValueError(f"{self.name} has no head")

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> Any:
        """A head of this shape with random weights; under `nnx.eval_shape`, an abstract one to restore weights into."""
        raise ValueError(f"{self.name} has no head")

    def estimates(self, draft: Any) -> bool:
        """Whether these weights give `Drafts.log_accept`."""
        return False

    def fitted(self, draft: Any) -> "Drafter":
        """The same drafter, with settings limited to the range that its weights support."""
        return self

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        """Raises ValueError, with the reason, if a head of this shape does not fit the target."""

    # --- its part in the loop

    def taps(self, models: Models) -> tuple[int, ...]:
        """Target layers whose inputs `observe` needs."""
        return ()

    def init(self, models: Models, batch: int, cache_len: int) -> State:
        """State for `batch` sequences of up to `cache_len` tokens."""
        return ()

    def enlarge(self, models: Models, state: State, cache_len: int) -> State:
        """The same state, between rounds, with room for `cache_len` tokens. The given state must not be used again.

        The default enlarges every KV cache in it, and deletes the old one.
        """
        is_kv = lambda leaf: isinstance(leaf, KV)
        return jax.tree.map(lambda leaf: enlarge((leaf,), cache_len)[0] if is_kv(leaf) else leaf, state, is_leaf=is_kv)

    def observe(self, models: Models, state: State, committed: Committed) -> State:
        """Updates the state with verified tokens: a chunk of the prompt, or a round's accepted path."""
        return state

    def root(self, models: Models, state: State, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, State]:
        """Drafts the token after the root (W = 1), at the start of a round."""
        return self.expand(models, state, prefix, tree, root_frontier(tree.token.shape[0]))

    def widen(self, state: State, width: int) -> State:
        """The state after `root`, for frontiers of W = `width` nodes."""
        return state

    @abc.abstractmethod
    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, State]:
        """Drafts the token after each of the W nodes of the frontier."""

    def from_history(self, state: State, batch: int) -> Rows:
        """Rows that copy earlier text in this round. Controllers do not stop these rows, and do not learn from them.

        The levels of these rows take no pass: `expand` may skip one that no other live row of the frontier needs.
        """
        return jnp.zeros(batch, bool)

    @property
    def copies(self) -> bool:
        """Whether it overrides `from_history`. Then `root` runs in every round, and itself skips the head's pass if no
        row of `prefix.unfinished` needs it."""
        return type(self).from_history is not Drafter.from_history

    def target_forward(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, slots: Int[Array, "B N"], leaves: int
    ) -> Output:
        """Runs the target over all nodes of a tree. It runs in a branch of the loop, so it must not return a cache.

        Args:
            state: the state after drafting; after `observe` if the tree has no levels.
            slots: index of each node in the tree before pruning and compaction.
            leaves: upper bound of the number of live, unexpanded nodes in any row.

        Returns:
            For all nodes in the tree's order: hidden states after the final norm, keys and values of each layer, and
            taps in the order of `taps`.
        """
        return forward(
            models.target, tree.token, positions(prefix, tree.depth), tree.ancestors, prefix.cache, prefix.length - 1,
            taps=self.taps(models),
        )  # fmt: skip


def positions(prefix: Prefix, depth: Int[Array, "B W"]) -> Int[Array, "B W"]:
    """Rotary positions of nodes at these depths."""
    return prefix.length[:, None] - 1 + depth


def slots_of(tree: DraftTree, frontier: Frontier) -> Int[Array, "B W"]:
    """The slots of a frontier's nodes; N, which is past the last slot, for nodes that are not live."""
    return jnp.where(frontier.live, frontier.node, tree.token.shape[1])


def last_valid(values: Float[Array, "B T D"], count: Int[Array, " B"]) -> Float[Array, "B D"]:
    """Row `count` - 1 of each sequence; row 0 if count is 0."""
    return take(values, jnp.maximum(count - 1, 0)[:, None])[:, 0]


def run_if(needed: Bool[Array, ""], run: Callable[[State], tuple[Drafts, State]], state: State) -> tuple[Drafts, State]:
    """Runs a pass of a drafter if it is needed; otherwise returns zeros and the old state.

    Arrays that the pass does not change bypass the conditional, because XLA would copy a cache that a branch returns.
    """
    traced, (drafted, after) = jax.make_jaxpr(run, return_shape=True)(state)
    inputs, outputs = traced.jaxpr.invars, traced.jaxpr.outvars[len(jax.tree.leaves(drafted)) :]
    source = [next((i for i, var in enumerate(inputs) if var is output), None) for output in outputs]
    old, structure = jax.tree.flatten(state)
    begins = jax.tree.structure(after) != structure  # `root` adds the state of a single round

    changed = lambda leaves: [leaf for leaf, place in zip(leaves, source, strict=True) if place is None]
    zeros = lambda shape: jnp.zeros(shape.shape, shape.dtype)

    def full_pass() -> tuple[Drafts, list[Array]]:
        drafts, state_after = run(state)
        return drafts, changed(jax.tree.leaves(state_after))

    def no_pass() -> tuple[Drafts, list[Array]]:
        return jax.tree.map(zeros, drafted), changed(list(map(zeros, jax.tree.leaves(after))) if begins else old)

    drafts, new = jax.lax.cond(needed, full_pass, no_pass)
    new = iter(new)
    leaves = [next(new) if place is None else old[place] for place in source]
    return drafts, jax.tree.unflatten(jax.tree.structure(after), leaves)
