"""Training labels of Cali-TS's predictor: whether the target accepted a draft, with the hidden states at that position.

The labels come from greedy decoding with chains of fixed length. Each round gives the comparisons that verification
really made, up to the first rejected draft.
"""

import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import chex
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import broadcast_from_first, fetch, is_first, wait
from jaxspec.host.terminal import progress
from jaxspec.train.methods.recording_drafter import Recording


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
    began, total = time.monotonic(), len(requests)
    with progress("text", total) as shown:
        for first in range(0, total, batch_size):
            some = requests[first : first + batch_size]
            file = folder / f"{first:08d}.npz"
            if file.name not in there:
                labels = labels_of(engine, some)
                if is_first():
                    write_labels(file, labels)
                wait()
            yield from read_labels(file)
            done = first + len(some)
            if shown.due() or done == total:
                seconds = time.monotonic() - began
                shown.show(done, f"{done / seconds:.1f} texts/s", (total - done) * seconds / done)


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
    with np.load(file) as stored:
        count = len(stored.files) // len(_FIELDS)
        return [Labels(**{name: stored[f"{i}.{name}"] for name in _FIELDS}) for i in range(count)]


def join(labels: Sequence[Labels]) -> Labels:
    """The labels of all texts in one."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *labels)
