"""Training labels of Cali-TS's predictor: whether the target accepted a draft, with the hidden states at that position.

The labels come from greedy decoding with chains of fixed length. Each round gives the comparisons that verification
really made, up to the first rejected draft. A controller records the hidden states, those that Cali-TS receives.
"""

import dataclasses
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.engine import Engine
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import broadcast_from_first, fetch, is_first, wait
from jaxspec.host.terminal import progress


@chex.dataclass(frozen=True)
class Recording:
    """The inputs of the predictor in the last round, and that round's result."""

    target_hidden: Float[Array, "B D"]  # the target's feature at the last verified position
    draft_hidden: Float[Array, "B levels E"]  # the hidden state from which each level's token was drafted
    log_top: Float[Array, "B levels"]  # log of the largest probability in that token's distribution
    committed: Int[Array, " B"]  # tokens of the round with the bonus token; 0: the row had ended


@final
@dataclasses.dataclass(frozen=True)
class Recorder(Controller):
    """Drafts chains of `levels` to their end and records each round. The hidden states have these widths."""

    name: ClassVar[str] = "recorder"
    stops: ClassVar[bool] = False
    levels: int
    target_hidden: int
    draft_hidden: int
    dtype: str  # of the hidden states

    def init(self, batch: int) -> Recording:
        return Recording(
            target_hidden=jnp.zeros((batch, self.target_hidden), self.dtype),
            draft_hidden=jnp.zeros((batch, self.levels, self.draft_hidden), self.dtype),
            log_top=jnp.zeros((batch, self.levels), jnp.float32),
            committed=jnp.zeros(batch, jnp.int32),
        )

    def on_level(self, state: Recording, signals: DraftSignals) -> Recording:
        assert signals.draft_hidden is not None, "a drafter without hidden states has no predictor"
        level, drafted = signals.level - 1, signals.draft_hidden.astype(self.dtype)
        log_top = jnp.log(jnp.maximum(signals.top_prob, jnp.finfo(jnp.float32).tiny))  # as `CaliTS` has it
        return dataclasses.replace(
            state,
            target_hidden=signals.target_hidden.astype(self.dtype),
            draft_hidden=state.draft_hidden.at[:, level].set(drafted),
            log_top=state.log_top.at[:, level].set(log_top),
        )

    def keep_drafting(
        self, models: Models, keys: Key[Array, " B"], state: Recording, signals: DraftSignals
    ) -> Bool[Array, " B"]:
        return jnp.ones(signals.top_prob.shape, bool)

    def update(self, state: Recording, counts: RoundCounts) -> Recording:
        return dataclasses.replace(state, committed=jnp.asarray(counts.committed))


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
    """The labels of each text, decoded greedily with a `Recorder`.

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
    session, rounds = engine.session(requests), list[Recording]()
    while not (rounds and session.finished):  # texts may end with their first token, before any round
        session.advance(rounds=1)
        rounds.append(fetch(session.state.controller))
    labels = []
    for row in range(len(requests)):
        of_row = lambda *rounds, row=row: np.stack([each[row] for each in rounds]).astype(np.float32)
        found: Recording = jax.tree.map(of_row, *rounds)
        kept = slice(0, max(int((found.committed > 0).sum()) - 1, 0))
        accepted, level = found.committed[kept, None] - 1, np.arange(found.log_top.shape[1])  # all but the bonus token
        labels.append(
            Labels(
                target_hidden=found.target_hidden[kept],
                draft_hidden=found.draft_hidden[kept],
                log_top=found.log_top[kept],
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
