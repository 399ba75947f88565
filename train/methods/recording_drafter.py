"""Records the hidden states of a drafter and its target during decoding, to train Cali-TS's predictor."""

import dataclasses
from typing import Any, ClassVar, final

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.controllers.acceptance_predictor import draft_width
from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, last_valid, log_top
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.model.llama import Output


@chex.dataclass(frozen=True)
class Recording:
    """The inner drafter's state, the current round, and records of up to R rounds."""

    inner: Any
    drafting: Bool[Array, " B"]  # whether anything was drafted since the last `observe`
    hidden: Float[Array, "B levels E"]  # `draft_hidden` of the current round
    top: Float[Array, "B levels"]  # `log_top` of the current round
    feature: Float[Array, "B D"]  # the target's feature at the last verified position
    round: Int[Array, " B"]
    draft_hidden: Float[Array, "B R levels E"]  # the hidden state from which each level's token was drafted
    log_top: Float[Array, "B R levels"]  # log of the largest probability in that token's distribution
    target_hidden: Float[Array, "B R D"]  # the feature before the round
    committed: Int[Array, "B R"]  # tokens of the round with the bonus token; 0: the row had ended


@final
@dataclasses.dataclass(frozen=True)
class RecordingDrafter(Drafter):
    """Drafts chains of `length` with another drafter, and records its hidden states."""

    name: ClassVar[str] = "recording"
    inner: Drafter
    length: int

    @property
    def reuses_drafting(self) -> bool:
        """The inner drafter's, because `target_forward` is the inner drafter's too."""
        return self.inner.reuses_drafting

    def taps(self, models: Models) -> tuple[int, ...]:
        return self.inner.taps(models)

    def init(self, models: Models, batch: int, cache_len: int) -> Recording:
        config, dtype = models.target.config, models.target.dtype
        levels, target = (self.length, draft_width(self.inner, models)), config.hidden_size
        return Recording(
            inner=self.inner.init(models, batch, cache_len),
            drafting=jnp.zeros(batch, bool),
            hidden=jnp.zeros((batch, *levels), dtype),
            top=jnp.zeros((batch, self.length), jnp.float32),
            feature=jnp.zeros((batch, target), dtype),
            round=jnp.zeros(batch, jnp.int32),
            draft_hidden=jnp.zeros((batch, cache_len, *levels), dtype),
            log_top=jnp.zeros((batch, cache_len, self.length), jnp.float32),
            target_hidden=jnp.zeros((batch, cache_len, target), dtype),
            committed=jnp.zeros((batch, cache_len), jnp.int32),
        )

    def enlarge(self, state: Recording, cache_len: int) -> Recording:
        def pad(x):
            return jnp.pad(x, [(0, 0), (0, cache_len - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])

        return dataclasses.replace(
            state,
            inner=self.inner.enlarge(state.inner, cache_len),
            draft_hidden=pad(state.draft_hidden),
            log_top=pad(state.log_top),
            target_hidden=pad(state.target_hidden),
            committed=pad(state.committed),
        )

    def observe(self, models: Models, state: Recording, committed: Committed) -> Recording:
        batch, cache_len = state.committed.shape
        # Index `cache_len` drops the write: nothing was drafted before a chunk of the prompt.
        at = jnp.arange(batch), jnp.where(state.drafting, state.round, cache_len)

        def put(kept, new):
            return kept.at[at].set(new.astype(kept.dtype), mode="drop")

        last = last_valid(committed.hidden, committed.count)
        return dataclasses.replace(
            state,
            inner=self.inner.observe(models, state.inner, committed),
            drafting=jnp.zeros_like(state.drafting),
            feature=jnp.where((committed.count > 0)[:, None], last, state.feature),
            round=state.round + state.drafting,
            draft_hidden=put(state.draft_hidden, state.hidden),
            log_top=put(state.log_top, state.top),
            target_hidden=put(state.target_hidden, state.feature),
            committed=put(state.committed, committed.count),
        )

    def root(self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, Recording]:
        drafts, inner = self.inner.root(models, state.inner, prefix, tree)
        begun = dataclasses.replace(state, inner=inner, drafting=jnp.ones_like(state.drafting))
        return drafts, _keep(begun, drafts, jnp.zeros((), jnp.int32))

    def widen(self, state: Recording, width: int) -> Recording:
        return dataclasses.replace(state, inner=self.inner.widen(state.inner, width))

    def expand(
        self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, Recording]:
        drafts, inner = self.inner.expand(models, state.inner, prefix, tree, frontier)
        return drafts, _keep(dataclasses.replace(state, inner=inner), drafts, frontier.level)

    def target_forward(
        self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree, slots: Int[Array, "B N"], leaves: int
    ) -> Output:
        return self.inner.target_forward(models, state.inner, prefix, tree, slots, leaves)


def _keep(state: Recording, drafts: Drafts, level: Int[Array, ""]) -> Recording:
    """The state with the hidden state and `log_top` of one level (from 0) of the chain."""
    assert drafts.hidden is not None, "a drafter without hidden states has no predictor"
    hidden = state.hidden.at[:, level].set(drafts.hidden[:, 0].astype(state.hidden.dtype))
    top = state.top.at[:, level].set(log_top(drafts, jnp.zeros((len(hidden), 1), jnp.int32)))
    return dataclasses.replace(state, hidden=hidden, top=top)
