"""Always drafts to the builder's full depth."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models, State
from jaxspec.decoding.tree import Rows


@final
@dataclasses.dataclass(frozen=True)
class Fixed(Controller):
    """Always drafts to the builder's full depth."""

    name: ClassVar[str] = "fixed"
    stops: ClassVar[bool] = False

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals) -> Rows:
        return jnp.ones(signals.top_prob.shape, bool)
