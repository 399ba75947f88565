"""Cali-TS's predictor (EESD, arXiv:2406.03853, Eq. 5): will the target accept what was just drafted?

Its labels are collected by decoding: chains of fixed length, greedy, and of each round the comparisons that were really
made, up to the first draft that was not accepted.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.controllers.acceptance_predictor import FOLDER as PREDICTOR
from jaxspec.controllers.acceptance_predictor import AcceptancePredictor, classify, write_predictor
from jaxspec.controllers.fixed import Fixed
from jaxspec.decoding.request import Request
from jaxspec.engine.engine import UNLIMITED, Engine
from jaxspec.engine.head_weights import load_head
from jaxspec.host.atomic import staged
from jaxspec.host.interrupts import deferred
from jaxspec.host.pace import Pace, progress
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, drafter_of, name_of
from jaxspec.train.methods.recording_drafter import RecordingDrafter
from jaxspec.train.run.folder import Run

HELD_OUT = 10  # one text in so many only measures
_EVERY = 50  # steps between measurements


@chex.dataclass(frozen=True)
class Labels:
    """What was seen and found out in n rounds of K levels."""

    target_hidden: Float[Array | np.ndarray, "n D"]  # the target's feature at the last position verified before
    draft_hidden: Float[Array | np.ndarray, "n K E"]  # the hidden state that gave each drafted token
    accepted: Bool[Array | np.ndarray, "n K"]
    compared: Bool[Array | np.ndarray, "n K"]  # whether the target looked at it: all before it were accepted


_FIELDS = ("target_hidden", "draft_hidden", "accepted", "compared")


@dataclasses.dataclass(frozen=True)
class LabelSettings:
    """How labels are collected and learnt from.

    Attributes:
        length: of the chains.
        steps: of Adam, a batch of rounds each.
        batch_size: texts decoded together.
        rounds: in a batch of training.
    """

    max_new_tokens: int
    length: int
    batch_size: int
    steps: int
    rounds: int
    learning_rate: float
    seed: int


def folder_of(model: Checkpoint, head: str, out: Path | None) -> Path:
    """Where a predictor goes: `out`, or into the folder of the head.

    Raises:
        ValueError: that is the package's own.
        CheckpointError: no such head.
    """
    folder = find_head(model.path, head)
    if out is None and FOLDER in folder.parents:
        raise ValueError("a predictor for a builtin head needs --out: what comes with the package is left as it is")
    return out or folder / PREDICTOR


def train(
    out: Path, model: Checkpoint, head: str, prompts: Sequence[list[int]], plan: LabelSettings, run: Run, dtype: str
) -> AcceptancePredictor:
    """Collects labels for a trained head, fits the predictor, and writes it to `out`, whole or not at all.

    Args:
        prompts: token ids, to decode from.
        run: keeps the labels of each batch of prompts; from those a run that was killed goes on.
        dtype: of the predictor on disk.

    Raises:
        CheckpointError: no such head, or `out` exists.
        ValueError: a prompt that leaves no room for a token, or labels of one kind alone.
    """
    drafter = drafter_of(model.path, head)
    method = Method(drafter=drafter, builder=Chain(length=plan.length), controller=Fixed(), head=head)
    weights = load_head(model, method)
    watched = dataclasses.replace(method, drafter=RecordingDrafter(inner=drafter, length=plan.length))
    engine = Engine(model, watched, draft=weights)
    with staged(out, 0) as folder:
        found = list(collect(engine, prompts, plan, run))
        held_out = found[::HELD_OUT] if len(found) > 1 else found
        kept = [part for i, part in enumerate(found) if i % HELD_OUT] or found
        trained, measured = fit(join(kept), join(held_out), plan)
        narrow = jax.tree.map(lambda param: param.astype(dtype), trained)
        with deferred():
            write_predictor(folder, model.config.model, narrow)
    say(
        f"wrote {out}: a predictor for {name_of(drafter)}, loss {measured['loss']:.3f} on held-out comparisons, where "
        f"knowing only their share accepted ({measured['share']:.2f}) gives {measured['base']:.3f}"
    )
    return trained


def collect(engine: Engine, prompts: Sequence[list[int]], plan: LabelSettings, run: Run) -> Iterator[Labels]:
    """The labels of each text, decoded greedily in batches."""
    room = engine.model.config.model.usable_length
    pace, began, total = Pace(), time.monotonic(), len(prompts)
    with progress("text", 0, total) as show:
        for first in range(0, total, plan.batch_size):
            some = prompts[first : first + plan.batch_size]
            file = run.labels / f"{first:08d}.npz"
            if not file.exists():
                requests = [Request(p, min(plan.max_new_tokens, room - len(p)), 0.0, 0, 1.0, 0, 0) for p in some]
                write_labels(file, labels_of(engine, requests))
            yield from read_labels(file)
            done = first + len(some)
            if pace.due() or done == total:
                seconds = time.monotonic() - began
                show(done, f"{done / seconds:.1f} texts/s", (total - done) * seconds / done)


def labels_of(engine: Engine, requests: list[Request]) -> list[Labels]:
    """Decodes a batch with a `Watched` drafter. The last round of a text is left out: its end may have cut it."""
    for request in requests:
        if request.max_new_tokens < 1:
            raise ValueError(
                f"a prompt has {len(request.tokens)} tokens, which leaves no room in this model; lower --prompt-tokens"
            )
    state: Any = None
    for state, _ in engine.stages(requests, False, False, UNLIMITED):  # noqa: B007
        pass
    watch = state.drafter
    seen = jax.device_get((watch.target_hidden, watch.draft_hidden, watch.committed))
    return [_labels(*(array[row].astype(np.float32) for array in seen)) for row in range(len(requests))]


def _labels(target_hidden: np.ndarray, draft_hidden: np.ndarray, committed: np.ndarray) -> Labels:
    rounds = slice(0, max(int((committed > 0).sum()) - 1, 0))
    accepted = committed[rounds, None] - 1  # all but the bonus token
    level = np.arange(draft_hidden.shape[1])
    return Labels(
        target_hidden=target_hidden[rounds],
        draft_hidden=draft_hidden[rounds],
        accepted=level < accepted,
        compared=level <= accepted,
    )


def write_labels(file: Path, labels: Sequence[Labels]) -> None:
    """Writes the labels of a batch of texts, whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_name(f".{file.name}")
    with part.open("wb") as opened:
        np.savez(opened, **{f"{i}.{name}": getattr(each, name) for i, each in enumerate(labels) for name in _FIELDS})
    part.replace(file)


def read_labels(file: Path) -> list[Labels]:
    """Inverse of `write_labels`."""
    with np.load(file) as stored:
        count = len(stored.files) // len(_FIELDS)
        return [Labels(**{name: stored[f"{i}.{name}"] for name in _FIELDS}) for i in range(count)]


def join(labels: Sequence[Labels]) -> Labels:
    """All of them together."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *labels)


def fit(labels: Labels, held_out: Labels, plan: LabelSettings) -> tuple[AcceptancePredictor, dict[str, float]]:
    """Cross-entropy by Adam; of the weights measured now and then, the best on `held_out`.

    Returns:
        the predictor, and its `loss` on `held_out`, the `share` accepted there, and its entropy, `base`.

    Raises:
        ValueError: drafts were always accepted, or never: there is nothing to tell apart.
    """
    accepted, compared = np.asarray(labels.accepted), np.asarray(labels.compared)
    if not 0 < accepted[compared].sum() < compared.sum():
        raise ValueError("the target accepted all drafts or none, so there is nothing to tell apart; take more text")
    width, (_, _, narrow) = labels.target_hidden.shape[1], labels.draft_hidden.shape
    weights: Any = AcceptancePredictor(width, narrow, rngs=nnx.Rngs(plan.seed))
    schedule = optax.cosine_decay_schedule(plan.learning_rate, plan.steps, 0.1)
    optimizer = optax.adamw(schedule, weight_decay=0.01)

    @jax.jit
    def some_steps(weights: Any, moments: Any, rows: Array, labels: Labels) -> Any:
        def step(carry, chosen):
            weights, moments = carry
            part = jax.tree.map(lambda array: array[chosen], labels)
            slope = jax.grad(loss)(weights, part)
            updates, moments = optimizer.update(slope, moments, weights)
            return (optax.apply_updates(weights, updates), moments), None

        return jax.lax.scan(step, (weights, moments), rows)[0]

    measure, moments, draw = jax.jit(loss), optimizer.init(weights), np.random.default_rng(plan.seed)
    best, lowest = weights, float("inf")
    for _ in range(0, plan.steps, _EVERY):
        rows = jnp.asarray(draw.integers(len(accepted), size=(_EVERY, plan.rounds)))
        weights, moments = some_steps(weights, moments, rows, labels)
        if (found := float(measure(weights, held_out))) < lowest:
            best, lowest = weights, found
    share = float(np.asarray(held_out.accepted)[np.asarray(held_out.compared)].mean())
    base = -sum(p * np.log(max(p, 1e-9)) for p in (share, 1 - share))
    return best, {"loss": lowest, "share": share, "base": base}


def loss(weights: AcceptancePredictor, labels: Labels) -> Float[Array, ""]:
    """Mean cross-entropy over the comparisons made."""
    levels = jnp.arange(1, labels.accepted.shape[1] + 1)
    target, draft = jnp.asarray(labels.target_hidden), jnp.asarray(labels.draft_hidden)
    logits = jax.vmap(classify, (None, 0, None, 1), 1)(weights, levels, target, draft)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels.accepted).astype(jnp.int32))
    compared = jnp.asarray(labels.compared)
    return (each * compared).sum() / jnp.maximum(compared.sum(), 1)
