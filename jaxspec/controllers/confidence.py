"""Stop before the first draft that the head itself expects to be rejected (DSpark, arXiv:2607.05147, static cut)."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Drafts, Models, State
from jaxspec.decoding.tree import Rows


@final
@dataclasses.dataclass(frozen=True)
class Confidence(Controller):
    """DSpark's static cut: stops before a draft of low estimated acceptance.

    It drops the drafts after a node if their estimate is below the threshold. The confidence head reads only rows and
    tokens before a draft, so this is lossless with every rule.

    Attributes:
        threshold: least estimated probability that the draft is accepted, if all before it are. A round whose first
            draft is below it has no drafts.
    """

    name: ClassVar[str] = "confidence"
    needs_estimates: ClassVar[bool] = True
    threshold: float = 0.3

    def __post_init__(self) -> None:
        self.require_that(lambda value: 0 <= value <= 1, "be a probability, from 0 to 1", "threshold")

    def admits(self, drafts: Drafts) -> Bool[Array, "B Q"] | None:
        assert drafts.log_accept is not None, "checked by Method.fitted"
        return jnp.exp(drafts.log_accept) >= self.threshold

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals) -> Rows:
        return jnp.ones(keys.shape, bool)
