"""The interface of controllers."""

import abc
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.draft_signals import DraftSignals
from jaxspec.decoding.drafter import FLOAT32, Models, State
from jaxspec.decoding.round_counts import RoundCounts
from jaxspec.decoding.strategy import Strategy


class Controller(Strategy):
    """Decides whether a sequence drafts another level. It never removes a drafted node.

    Attributes:
        stops: it may end drafting before the builder's full depth.
        looks_beyond_row: its decisions depend on more than the row's own text, such as other rows or measured costs.
            Above temperature 0 such a method needs Gumbel coupling, under which drafts never change the text
            (`Method.rule`).
    """

    stops: ClassVar[bool] = True
    looks_beyond_row: ClassVar[bool] = False

    @property
    def needs_weights(self) -> bool:
        """Whether it has weights of its own.

        By default they are the `AcceptancePredictor` in HEAD/calibrator, from `jaxspec-train calibrator`. Other weights
        are given as `Engine(..., control=)`.
        """
        return False

    def build_weights(self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = FLOAT32) -> Any:
        """Random weights for hidden states of these widths. Raises ValueError if it has no weights."""
        raise ValueError(f"{self.name} has no weights")

    def init(self, batch: int) -> State:
        """Initial state of `batch` sequences."""
        return ()

    def begin(
        self,
        models: Models,
        keys: Key[Array, " B"],
        state: State,
        unfinished: Bool[Array, " B"],
        builder: TreeBuilder,
    ) -> tuple[State, Bool[Array, " B"]]:
        """Called before a round. Returns the state, perhaps with values for this round, and whether each row drafts.

        Finished rows keep their state and do not draft, whatever is returned for them.

        Args:
            unfinished: rows that are not finished.
            builder: the builder of the round's trees.
        """
        return state, jnp.ones(keys.shape, bool)

    def note(self, state: State, signals: DraftSignals) -> State:
        """Called after each drafted level. Returns the updated state; rows that drafted no node keep theirs."""
        return state

    @abc.abstractmethod
    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        """Whether each row drafts another level. Nodes drafted so far are verified in either case."""

    def update(self, state: State, counts: RoundCounts) -> State:
        """Learns from a round's counts [B].

        All counts of a finished row are 0. A row that copied earlier text counts no drafts, and keeps its old state.
        """
        return state
