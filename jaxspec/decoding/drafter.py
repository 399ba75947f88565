"""What a drafter is, and the records that the loop passes to it."""

from typing import Any, ClassVar, Protocol, runtime_checkable

import chex
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama

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
