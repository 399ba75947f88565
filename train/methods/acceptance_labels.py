"""Training labels of Cali-TS's predictor: whether the target accepted a draft, with the hidden states at that position.

The labels come from greedy decoding with chains of fixed length. Each round gives the comparisons that verification
really made, up to the first rejected draft. A drafter around the head's own records the hidden states.
"""

import dataclasses
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import chex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxspec.controllers.acceptance_predictor import draft_width
from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, last_valid, log_top
from jaxspec.decoding.request import Request
from jaxspec.decoding.tree import DraftTree, Frontier
from jaxspec.engine.engine import Engine
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import broadcast_from_first, fetch, is_first, wait
from jaxspec.host.terminal import progress
from jaxspec.model.llama import Output


@chex.dataclass(frozen=True)
class Recording:
    """The inner drafter's state, and records of up to R rounds."""

    inner: Any
    round: Int[Array, " B"]  # index of the current round
    drafting: Bool[Array, " B"]  # whether anything was drafted since the last `observe`
    feature: Float[Array, "B D"]  # the target's feature at the last verified position
    draft_hidden: Float[Array, "B R levels E"]  # the hidden state from which each level's token was drafted
    log_top: Float[Array, "B R levels"]  # log of the largest probability in that token's distribution
    target_hidden: Float[Array, "B R D"]  # the feature before the round
    committed: Int[Array, "B R"]  # tokens of the round with the bonus token; 0: the row had ended


@final
@dataclasses.dataclass(frozen=True)
class RecordingDrafter(Drafter):
    """Drafts chains of `length` with another drafter, and records its hidden states in the first `rounds` rounds."""

    name: ClassVar[str] = "recording"
    inner: Drafter
    length: int
    rounds: int

    @property
    def reuses_drafting(self) -> bool:
        """The inner drafter's, because `target_forward` is the inner drafter's too."""
        return self.inner.reuses_drafting

    def taps(self, models: Models) -> tuple[int, ...]:
        return self.inner.taps(models)

    def init(self, models: Models, batch: int, cache_len: int) -> Recording:
        width, dtype = models.target.config.hidden_size, models.target.dtype
        rounds = batch, self.rounds
        return Recording(
            inner=self.inner.init(models, batch, cache_len),
            round=jnp.zeros(batch, jnp.int32),
            drafting=jnp.zeros(batch, bool),
            feature=jnp.zeros((batch, width), dtype),
            draft_hidden=jnp.zeros((*rounds, self.length, draft_width(self.inner, models)), dtype),
            log_top=jnp.zeros((*rounds, self.length), jnp.float32),
            target_hidden=jnp.zeros((*rounds, width), dtype),
            committed=jnp.zeros(rounds, jnp.int32),
        )

    def enlarge(self, models: Models, state: Recording, cache_len: int) -> Recording:
        return dataclasses.replace(state, inner=self.inner.enlarge(models, state.inner, cache_len))

    def observe(self, models: Models, state: Recording, committed: Committed) -> Recording:
        # Index `rounds` drops the write: nothing was drafted before a chunk of the prompt.
        at = jnp.arange(len(state.round)), jnp.where(state.drafting, state.round, self.rounds)
        last = last_valid(committed.hidden, committed.count)
        return dataclasses.replace(
            state,
            inner=self.inner.observe(models, state.inner, committed),
            round=state.round + state.drafting,
            drafting=jnp.zeros_like(state.drafting),
            feature=jnp.where((committed.count > 0)[:, None], last, state.feature),
            target_hidden=state.target_hidden.at[at].set(state.feature, mode="drop"),
            committed=state.committed.at[at].set(committed.count, mode="drop"),
        )

    def root(self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, Recording]:
        drafts, inner = self.inner.root(models, state.inner, prefix, tree)
        begun = dataclasses.replace(state, inner=inner, drafting=jnp.ones_like(state.drafting))
        return drafts, _record(begun, drafts, 0)

    def widen(self, state: Recording, width: int) -> Recording:
        return dataclasses.replace(state, inner=self.inner.widen(state.inner, width))

    def expand(
        self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, Recording]:
        drafts, inner = self.inner.expand(models, state.inner, prefix, tree, frontier)
        return drafts, _record(dataclasses.replace(state, inner=inner), drafts, frontier.level)

    def target_forward(
        self, models: Models, state: Recording, prefix: Prefix, tree: DraftTree, slots: Int[Array, "B N"], leaves: int
    ) -> Output:
        return self.inner.target_forward(models, state.inner, prefix, tree, slots, leaves)


def _record(state: Recording, drafts: Drafts, level: Int[Array, ""] | int) -> Recording:
    """The state with the hidden state and `log_top` of one level (from 0) of the current round's chain."""
    assert drafts.hidden is not None, "a drafter without hidden states has no predictor"
    batch = len(state.round)
    at, top = (jnp.arange(batch), state.round, level), log_top(drafts, jnp.zeros((batch, 1), jnp.int32))
    return dataclasses.replace(
        state,
        draft_hidden=state.draft_hidden.at[at].set(drafts.hidden[:, 0].astype(state.draft_hidden.dtype), mode="drop"),
        log_top=state.log_top.at[at].set(top, mode="drop"),
    )


@chex.dataclass(frozen=True)
class Labels:
    """Inputs and labels of the predictor, from R rounds."""

    target_hidden: Float[Array | np.ndarray, "R D"]  # the target's feature at the last verified position
    draft_hidden: Float[Array | np.ndarray, "R levels E"]  # the hidden state from which each token was drafted
    log_top: Float[Array | np.ndarray, "R levels"]  # log of the largest probability in each token's distribution
    accepted: Bool[Array | np.ndarray, "R levels"]  # whether the target accepted the token
    compared: Bool[Array | np.ndarray, "R levels"]  # whether the target judged the token: all before it were accepted


_FIELDS = ("target_hidden", "draft_hidden", "log_top", "accepted", "compared")


def collect(engine: Engine, requests: Sequence[Request], batch_size: int, folder: Path) -> Iterator[Labels]:
    """The labels of each text, decoded greedily by a `RecordingDrafter`.

    Args:
        folder: stores the labels of each batch, so that a killed run resumes. The first process writes, all read.
    """

    def names() -> list[str]:
        folder.mkdir(exist_ok=True)
        return [file.name for file in folder.glob("*.npz")]

    there = broadcast_from_first(names)
    began, total, decoded = time.monotonic(), len(requests), 0
    with progress("text", total) as shown:
        for first in range(0, total, batch_size):
            some = requests[first : first + batch_size]
            file = folder / f"{first:08d}.npz"
            if file.name not in there:
                labels = labels_of(engine, some)
                decoded += len(some)
                if is_first():
                    write_labels(file, labels)
                wait()
            yield from read_labels(file)
            done = first + len(some)
            if shown.due() or done == total:
                rate = decoded / (time.monotonic() - began)
                shown.show(done, f"{rate:.1f} texts/s" if rate else "", (total - done) / rate if rate else None)


def labels_of(engine: Engine, requests: Sequence[Request]) -> list[Labels]:
    """Decodes a batch. The last round of a text is left out, because the end of the text may have cut it short."""
    session = engine.session(requests)
    while not session.finished:
        session.advance()
    found: Recording = session.state.drafter
    seen = fetch((found.target_hidden, found.draft_hidden, found.log_top, found.committed))
    labels = []
    for row in range(len(requests)):
        target_hidden, draft_hidden, log_top, committed = (array[row].astype(np.float32) for array in seen)
        rounds = slice(0, max(int((committed > 0).sum()) - 1, 0))
        accepted, level = committed[rounds, None] - 1, np.arange(draft_hidden.shape[1])  # all but the bonus token
        labels.append(
            Labels(
                target_hidden=target_hidden[rounds],
                draft_hidden=draft_hidden[rounds],
                log_top=log_top[rounds],
                accepted=level < accepted,
                compared=level <= accepted,
            )
        )
    return labels


def write_labels(file: Path, labels: Sequence[Labels]) -> None:
    """Writes the labels of a batch of texts atomically."""
    content = io.BytesIO()
    np.savez(content, **{f"{i}.{name}": getattr(each, name) for i, each in enumerate(labels) for name in _FIELDS})
    write_whole(file, content.getvalue())


def read_labels(file: Path) -> list[Labels]:
    """Inverse of `write_labels`."""
    with np.load(io.BytesIO(file.read_bytes())) as stored:
        count = len(stored.files) // len(_FIELDS)
        return [Labels(**{name: stored[f"{i}.{name}"] for name in _FIELDS}) for i in range(count)]
