"""What a drafter and its target thought while they decoded: the evidence that Cali-TS's predictor is trained on."""

import dataclasses
from typing import Any, ClassVar

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.controllers.acceptance_predictor import draft_width
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.tree import take


@chex.dataclass(frozen=True)
class Recording:
    """The drafter's own state, and a row a round of what there was to judge its drafts by; R rows fit."""

    inner: Any
    drafting: Bool[Array, ""]  # whether something was drafted since the last observation
    hidden: Float[Array, "B K E"]  # of this round, by level
    feature: Float[Array, "B D"]  # the target's, at the last position that it verified
    round: Int[Array, ""]
    draft_hidden: Float[Array, "B R K E"]  # the hidden state that gave the token of each level
    target_hidden: Float[Array, "B R D"]  # the feature before the round
    committed: Int[Array, "B R"]  # tokens of the round, bonus included; 0: the row was done


@dataclasses.dataclass(frozen=True)
class RecordingDrafter:
    """A drafter that drafts as another does, chains of `length`, and remembers its hidden states."""

    inner: Drafter
    length: int
    abstains: ClassVar[bool] = False

    def taps(self, models) -> tuple[int, ...]:
        return self.inner.taps(models)

    def reuse(self, state):
        return self.inner.reuse(state.inner)

    def init(self, models, batch, rows) -> Recording:
        config, dtype = models.target.config, models.target.norm[...].dtype
        levels, target = (self.length, draft_width(self.inner, models)), config.hidden_size
        return Recording(
            inner=self.inner.init(models, batch, rows),
            drafting=jnp.zeros((), bool),
            hidden=jnp.zeros((batch, *levels), dtype),
            feature=jnp.zeros((batch, target), dtype),
            round=jnp.zeros((), jnp.int32),
            draft_hidden=jnp.zeros((batch, rows, *levels), dtype),
            target_hidden=jnp.zeros((batch, rows, target), dtype),
            committed=jnp.zeros((batch, rows), jnp.int32),
        )

    def grow(self, state, rows) -> Recording:
        pad = lambda x: jnp.pad(x, [(0, 0), (0, rows - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
        return dataclasses.replace(
            state,
            inner=self.inner.grow(state.inner, rows),
            draft_hidden=pad(state.draft_hidden),
            target_hidden=pad(state.target_hidden),
            committed=pad(state.committed),
        )

    def observe(self, models, state, committed) -> Recording:
        last = jnp.maximum(committed.count - 1, 0)[:, None]
        # Not after a chunk of the prompt: nothing was drafted there. A row outside is dropped.
        row = jnp.where(state.drafting, state.round, state.committed.shape[1])
        put = lambda rows, new: rows.at[:, row].set(new.astype(rows.dtype), mode="drop")
        return dataclasses.replace(
            state,
            inner=self.inner.observe(models, state.inner, committed),
            drafting=jnp.zeros((), bool),
            feature=jnp.where((committed.count > 0)[:, None], take(committed.hidden, last)[:, 0], state.feature),
            round=state.round + state.drafting,
            draft_hidden=put(state.draft_hidden, state.hidden),
            target_hidden=put(state.target_hidden, state.feature),
            committed=put(state.committed, committed.count),
        )

    def root(self, models, state, prefix, tree):
        logits, hidden, inner = self.inner.root(models, state.inner, prefix, tree)
        kept = state.hidden.at[:, 0].set(hidden.astype(state.hidden.dtype))
        return logits, hidden, dataclasses.replace(state, inner=inner, hidden=kept, drafting=jnp.ones((), bool))

    def expand(self, models, state, prefix, tree, frontier):
        logits, hidden, inner = self.inner.expand(models, state.inner, prefix, tree, frontier)
        kept = state.hidden.at[:, frontier.level].set(hidden[:, 0].astype(state.hidden.dtype))
        return logits, hidden, dataclasses.replace(state, inner=inner, hidden=kept)
