"""What the parts of the loop know of each other: the roles, and the records that pass between them.

A strategy (drafter, builder, controller) is a frozen, hashable dataclass of static settings with pure methods; its
state, if it has one, is a pytree that the loop carries.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

import chex
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.cache import KV
from jaxspec.llama import Llama
from jaxspec.tree import DraftTree, Frontier
from jaxspec.verify import Propose

State = Any  # a pytree of arrays, whatever the strategy needs


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
    taps: tuple[Float[Array, "B T D"], ...]


@chex.dataclass(frozen=True)
class Reuse:
    """What drafting computed of the target's first layers, as many as `nodes` has, at the slots of the grown tree."""

    nodes: tuple[KV, ...]  # keys and values of N nodes, one a layer
    hidden: Float[Array, "B N D"]  # the input of the layer after them
    known: Bool[Array, "B N"]  # nodes that it was computed for


@chex.dataclass(frozen=True)
class Evidence:
    """What a controller may judge by once a level is drafted, along each row's likeliest path."""

    level: Int[Array, ""]  # of the newest nodes, from 1
    top_prob: Float[Array, " B"]  # largest probability of the distribution that produced the newest node
    token_prob: Float[Array, " B"]  # that of the newest node's own token
    log_confidence: Float[Array, " B"]  # of the path to it
    draft_hidden: Float[Array, "B E"]  # the draft hidden state whose logits gave it
    target_hidden: Float[Array, "B D"]  # the target's feature at the last position that it verified


@runtime_checkable
class Drafter(Protocol):
    """Proposes continuations of a tree's nodes."""

    abstains: ClassVar[bool]  # may propose nothing after a node, by logits of -inf

    def taps(self, models: Models) -> tuple[int, ...]:
        """Target layers whose inputs `observe` wants."""
        ...

    def init(self, models: Models, batch: int, rows: int) -> State:
        """State for `batch` sequences of up to `rows` tokens."""
        ...

    def grow(self, state: State, rows: int) -> State:
        """The same state with room for `rows` tokens."""
        ...

    def observe(self, models: Models, state: State, committed: Committed) -> State:
        """Learns verified tokens: a chunk of the prompt, or a round's accepted path."""
        ...

    def root(self, models: Models, state: State, prefix: Prefix, tree: DraftTree) -> tuple[Array, Array, State]:
        """Logits [B V] and hidden state [B E] after the root; tree KV of the last round is forgotten."""
        ...

    def expand(
        self, models: Models, state: State, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Array, Array, State]:
        """Logits [B W V] and hidden states [B W E] after each node of the frontier."""
        ...

    def reuse(self, state: State) -> Reuse | None:
        """What verification need not compute again; None for all drafters that are not made of the target."""
        ...


@runtime_checkable
class TreeBuilder(Protocol):
    """Decides which nodes a tree gets."""

    prunes: ClassVar[bool]  # drops nodes by their own value: sound for candidates, never for sampled children
    varies: ClassVar[bool]  # how many nodes it leaves depends on the text, even where every row drafts to full depth

    @property
    def size(self) -> int:
        """Nodes while growing, root included."""
        ...

    @property
    def verified(self) -> int:
        """Most nodes left after `prune`, root included."""
        ...

    @property
    def depth(self) -> int:
        """Most levels below the root."""
        ...

    def grow(
        self,
        propose: Propose,
        tree: DraftTree,
        frontier: Frontier,
        logits: Float[Array, "B W V"],
        going: Bool[Array, " B"],
    ) -> tuple[DraftTree, Frontier]:
        """Adds the next level to the rows that are `going`, and says what to expand after it."""
        ...

    def prune(self, tree: DraftTree) -> DraftTree:
        """At most `verified` nodes; where the builder `prunes`, live ones first."""
        ...


def is_chain(builder: TreeBuilder) -> bool:
    """Whether all its trees are single paths, which have one leaf and no gaps."""
    return builder.size == builder.depth + 1


@runtime_checkable
class Controller(Protocol):
    """Decides whether a sequence drafts on. It may end a path, never take a drafted node back."""

    stops: ClassVar[bool]  # ever

    def init(self, models: Models, batch: int) -> State:
        """State of `batch` sequences that have seen nothing: a pytree whose arrays all begin with the axis B."""
        ...

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, evidence: Evidence
    ) -> Bool[Array, " B"]:
        """Whether each row drafts on, once a level is drafted. What it drafted so far is verified either way."""
        ...

    def update(self, state: State, accepted: Int[Array, " B"], levels: Int[Array, " B"]) -> State:
        """Learns from a round: drafts accepted and levels drafted, both after the cut at EOS and budget.

        Both are 0 in a row that was done, or in which nothing was drafted.
        """
        ...
