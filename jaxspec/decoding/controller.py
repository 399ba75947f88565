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
    """Decides whether a sequence drafts on. It may end a path, never take a drafted node back.

    Attributes:
        stops: it may end drafting before the builder's full depth.
        looks_beyond_row: it decides by more than the row's own text, such as the other rows or measured costs. Above
            temperature 0 such a method needs the rule under which no draft changes the text (`Method.rule`).
    """

    stops: ClassVar[bool] = True
    looks_beyond_row: ClassVar[bool] = False

    @property
    def needs_weights(self) -> bool:
        """Whether it brings weights of its own.

        They are an `AcceptancePredictor`'s in HEAD/calibrator, as `jaxspec-train calibrator` writes it for `cali-ts`;
        any others are given as `Engine(..., control=)`.
        """
        return False

    def build_weights(self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = FLOAT32) -> Any:
        """Random weights, for hidden states of these widths."""
        raise ValueError(f"{self.name} has no weights")

    def init(self, batch: int) -> State:
        """State of `batch` sequences that have seen nothing."""
        return ()

    def begin(
        self,
        models: Models,
        keys: Key[Array, " B"],
        state: State,
        unfinished: Bool[Array, " B"],
        builder: TreeBuilder,
    ) -> tuple[State, Bool[Array, " B"]]:
        """Before a round: a state that may hold what was drawn for it, and whether each row drafts at all.

        In rows that are done neither counts: their state stays, and they draft nothing.

        Args:
            unfinished: the rows that are not done.
            builder: of the round's trees.
        """
        return state, jnp.ones(keys.shape, bool)

    def note(self, state: State, signals: DraftSignals) -> State:
        """Once a level is drafted: a state that may hold what it showed. It stays in rows that drafted none."""
        return state

    @abc.abstractmethod
    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        """Whether each row drafts another level. What it has drafted so far is verified either way."""

    def update(self, state: State, counts: RoundCounts) -> State:
        """Learns from a round, by its counts [B]; all are 0 in a row that was done."""
        return state
