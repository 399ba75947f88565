"""What a controller is, and the signals that it judges by."""

from typing import ClassVar, Protocol, runtime_checkable

import chex
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.drafter import Models, State


@chex.dataclass(frozen=True)
class DraftSignals:
    """What a controller may judge by once a level is drafted, along each row's likeliest path."""

    level: Int[Array, ""]  # of the newest nodes, from 1
    top_prob: Float[Array, " B"]  # largest probability of the distribution that produced the newest node
    token_prob: Float[Array, " B"]  # that of the newest node's own token
    log_confidence: Float[Array, " B"]  # of the path to it
    draft_hidden: Float[Array, "B E"]  # the draft hidden state whose logits gave it
    target_hidden: Float[Array, "B D"]  # the target's feature at the last position that it verified


@runtime_checkable
class Controller(Protocol):
    """Decides whether a sequence drafts on. It may end a path, never take a drafted node back."""

    stops: ClassVar[bool]  # ever

    def init(self, models: Models, batch: int) -> State:
        """State of `batch` sequences that have seen nothing: a pytree whose arrays all begin with the axis B."""
        ...

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: State, evidence: DraftSignals
    ) -> Bool[Array, " B"]:
        """Whether each row drafts on, once a level is drafted. What it drafted so far is verified either way."""
        ...

    def update(self, state: State, accepted: Int[Array, " B"], levels: Int[Array, " B"]) -> State:
        """Learns from a round: drafts accepted and levels drafted, both after the cut at EOS and budget.

        Both are 0 in a row that was done, or in which nothing was drafted.
        """
        ...
