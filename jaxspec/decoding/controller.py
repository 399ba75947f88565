"""What a controller is, and the signals that it judges by."""

import abc
from typing import Any, ClassVar

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import FLOAT32, Models, State
from jaxspec.decoding.round_counts import RoundCounts


@chex.dataclass(frozen=True)
class DraftSignals:
    """What a controller may judge by once a level is drafted, along each row's most confident path."""

    level: Int[Array, ""]  # of the newest nodes, from 1
    top_prob: Float[Array, " B"]  # largest probability of the distribution that produced the newest node
    token_prob: Float[Array, " B"]  # that of the newest node's own token
    log_confidence: Float[Array, " B"]  # of the path to it
    draft_hidden: Float[Array, "B E"] | None  # the draft hidden state whose logits gave it; None: there is none
    target_hidden: Float[Array, "B D"]  # the target's feature at the last position that it verified


class Controller(abc.ABC):
    """Decides whether a sequence drafts on. It may end a path, never take a drafted node back.

    Attributes:
        name: what users type.
        stops: it may end drafting before the builder's full depth.
    """

    name: ClassVar[str]
    stops: ClassVar[bool] = True

    @property
    def needs_weights(self) -> bool:
        """Whether it brings weights of its own, which lie in the drafter's head."""
        return False

    def build_weights(self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = FLOAT32) -> Any:
        """Random weights, for hidden states of these widths."""
        raise ValueError(f"{self.name} has no weights")

    @property
    def needs_costs(self) -> bool:
        """Whether it decides by costs that it was not given."""
        return False

    def with_costs(self, table: CostTable) -> "Controller":
        """The same with every cost that it lacks taken from a measured table."""
        return self

    def init(self, batch: int) -> State:
        """State of `batch` sequences that have seen nothing."""
        return ()

    def begin(self, models: Models, keys: Key[Array, " B"], state: State) -> tuple[State, Bool[Array, " B"]]:
        """Before a round: a state that may hold what was drawn for it, and whether each row drafts at all."""
        return state, jnp.ones(keys.shape, bool)

    @abc.abstractmethod
    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        """Whether each row drafts on, once a level is drafted. What it drafted so far is verified either way."""

    def update(self, state: State, counts: RoundCounts) -> State:
        """Learns from a round, by its counts [B]; all are 0 in a row that was done."""
        return state
