"""`jaxspec-train calibrator`: fits Cali-TS's predictor of acceptance (EESD, arXiv:2406.03853, Eq. 5).

The labels come from greedy decoding with chains of fixed length: a round labels its drafts up to the first rejected
one. A controller records the hidden states that Cali-TS receives.
"""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.heads import HeadConfig, find_head, write_head
from jaxspec.controllers.cali_ts import FOLDER, AcceptancePredictor, CaliTS, draft_width
from jaxspec.decoding.controller import Controller, DraftSignals
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import drafter_of, load_head
from jaxspec.host.atomic import staged_by_all, write_whole
from jaxspec.host.interrupts import deferred
from jaxspec.host.processes import broadcast_from_first, fetch, is_first, split_over_hosts, wait
from jaxspec.host.terminal import progress, say
from jaxspec.methods.method import Method
from jaxspec.train.data.prompts import greedy_requests, hash_of, load_with_tokenizer
from jaxspec.train.data.text import join, take
from jaxspec.train.decoding_options import Calibrator
from jaxspec.train.run.folder import as_typed, default_out, hashes, open_run, run_folder

HELD_OUT = 10  # one text in this many is held out
_EVERY = 50  # steps between measurements
_TOP_RATE = 20.0  # factor of the learning rate for the few weights of the top probability, [2, 2]


def train(settings: Calibrator) -> AcceptancePredictor:
    """Collects labels for a trained head, fits the predictor, and writes it atomically.

    Several processes decode together. Then each fits the whole predictor from the same labels, because it is small.
    """
    model = load_with_tokenizer(settings.target, settings.dtype, settings.devices.open(several=True))
    out = settings.out or default_out(find_head(model.path, settings.head) / FOLDER, "a predictor for a builtin head")
    drafter = drafter_of(model.path, settings.head)
    requests = greedy_requests(model, settings)
    weights = load_head(model, Method(drafter, Chain(), head=settings.head))
    drafter = drafter.fitted(weights)
    length = min(settings.length, drafter.own_levels(weights) or settings.length)
    narrow = draft_width(drafter, Models(target=model.target, draft=weights))
    recorder = Recorder(length, model.config.model.hidden_size, narrow, dtype=model.target.dtype.name)
    engine = Engine(model, Method(drafter, Chain(length), recorder), draft=weights)
    decided = hashes(model.path, settings.head) | hash_of(requests)
    typed = as_typed("calibrator", settings, model.target.dtype.name) | decided
    with open_run(run_folder(out, settings.run_dir), typed) as run, staged_by_all(out, 0) as folder:
        labels = collect(engine, requests, settings.batch_size, run.labels)
        held_out = np.asarray(labels.text) % HELD_OUT == 0
        kept = ~held_out if len(requests) > 1 else held_out
        trained, measured = fit(take(labels, kept), take(labels, held_out), settings)
        dtype = settings.save_dtype
        shape = {"target_hidden": recorder.target_hidden, "draft_hidden": narrow, "inputs": trained.inputs}
        with deferred():
            weights = jax.tree.map(lambda array: split_over_hosts(np.asarray(array)), trained)
            chat_args = dict(settings.data.format.arguments) if settings.chat else None
            write_head(folder, HeadConfig(CaliTS.name, model.config.model, dtype, dtype, shape, chat_args), weights)
    say(
        f"wrote {out}: a predictor for {drafter.name}, loss {measured['loss']:.3f} on held-out comparisons; a constant "
        f"prediction of their acceptance rate ({measured['share']:.2f}) has {measured['base']:.3f}"
    )
    return trained


@chex.dataclass(frozen=True)
class Recording:
    """The inputs of the predictor in the last round, and that round's result."""

    target_hidden: Float[Array, "B D"]  # these three as in `Labels`
    draft_hidden: Float[Array, "B levels E"]
    log_top: Float[Array, "B levels"]
    committed: Int[Array, " B"]  # tokens of the round with the bonus token; 0: the row had ended


@final
@dataclasses.dataclass(frozen=True)
class Recorder(Controller):
    """Drafts chains of `levels` to their end and records each round."""

    name: ClassVar[str] = "recorder"
    stops: ClassVar[bool] = False
    levels: int
    target_hidden: int  # width
    draft_hidden: int  # width
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

    text: Int[Array | np.ndarray, " R"]  # index of the text
    target_hidden: Float[Array | np.ndarray, "R D"]  # the target's feature at the last verified position
    draft_hidden: Float[Array | np.ndarray, "R levels E"]  # the hidden state from which each token was drafted
    log_top: Float[Array | np.ndarray, "R levels"]  # log of the largest probability in each token's distribution
    accepted: Bool[Array | np.ndarray, "R levels"]  # whether the target accepted the token
    compared: Bool[Array | np.ndarray, "R levels"]  # whether verification reached the token: all before were accepted


def collect(engine: Engine, requests: Sequence[Request], batch_size: int, folder: Path) -> Labels:
    """The labels of all texts, decoded greedily with a `Recorder`.

    The folder stores those of each batch, so that a killed run resumes. The first process writes, all read.
    """
    if is_first():
        folder.mkdir(exist_ok=True)
    stored, parts = broadcast_from_first(lambda: [file.name for file in folder.glob("*.npz")]), list[Labels]()
    before = min(len(stored) * batch_size, len(requests))
    with progress("text", len(requests), before) as shown:
        for first in range(0, len(requests), batch_size):
            batch = requests[first : first + batch_size]
            file = folder / f"{first:08d}.npz"
            if file.name not in stored:
                labels = labels_of(engine, batch)
                if is_first():
                    np.savez(content := io.BytesIO(), **vars(dataclasses.replace(labels, text=labels.text + first)))
                    write_whole(file, content.getvalue())
                wait()
                shown.report(first + len(batch))
            with np.load(io.BytesIO(file.read_bytes())) as arrays:
                parts.append(Labels(**arrays))
    return join(parts)


def labels_of(engine: Engine, requests: Sequence[Request]) -> Labels:
    """Decodes a batch. The last round of a text is left out, because the end of the text may have cut it short."""
    session, rounds = engine.session(requests), list[Recording]()
    while not (rounds and session.finished):  # texts may end with their first token, before any round
        session.advance(rounds=1)
        rounds.append(fetch(session.state.controller))
    recorded: Recording = jax.tree.map(lambda *each: np.stack(each, axis=1), *rounds)
    whole = np.arange(len(rounds)) < (recorded.committed > 0).sum(axis=1, keepdims=True) - 1
    kept: Recording = jax.tree.map(lambda array: array[whole], recorded)
    accepted, level = kept.committed[:, None] - 1, np.arange(kept.log_top.shape[1])  # all but the bonus token
    return Labels(
        text=np.nonzero(whole)[0],
        target_hidden=kept.target_hidden.astype(np.float32),
        draft_hidden=kept.draft_hidden.astype(np.float32),
        log_top=kept.log_top,
        accepted=level < accepted,
        compared=level <= accepted,
    )


def fit(labels: Labels, held_out: Labels, settings: Calibrator) -> tuple[AcceptancePredictor, dict[str, float]]:
    """Minimises the cross-entropy by AdamW, and keeps the weights with the lowest loss on `held_out`.

    Returns:
        the predictor, and its `loss` on `held_out`, the `share` of accepted comparisons there, and `base`, the entropy
        of that share.

    Raises:
        ValueError: the target accepted all drafts or none, nothing was compared in `held_out`, or the loss overflows.
    """
    accepted, compared = np.asarray(labels.accepted), np.asarray(labels.compared)
    if not 0 < accepted[compared].sum() < compared.sum():
        raise ValueError("the target accepted all drafts or none, so nothing can be learnt; use more text")
    if not np.asarray(held_out.compared).any():
        raise ValueError("no draft was compared in the held-out texts, so nothing can be measured; use more text")
    width, (_, _, narrow) = labels.target_hidden.shape[1], labels.draft_hidden.shape
    random: Any = AcceptancePredictor(width, narrow, rngs=nnx.Rngs(settings.seed), inputs=settings.inputs)
    weights = jax.tree.map(jnp.zeros_like, random)  # it is linear, so it can start from zeros
    schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.steps, 0.1)
    of_top = jax.tree_util.tree_map_with_path(lambda path, _: "top" in jax.tree_util.keystr(path), weights)
    optimizer = optax.chain(optax.adamw(schedule, weight_decay=0.01), optax.masked(optax.scale(_TOP_RATE), of_top))

    @jax.jit
    def run_steps(weights: Any, moments: Any, rows: Array, labels: Labels) -> Any:
        def step(carry, chosen):
            weights, moments = carry
            part = jax.tree.map(lambda array: array[chosen], labels)
            slope = jax.grad(loss)(weights, part)
            updates, moments = optimizer.update(slope, moments, weights)
            return (optax.apply_updates(weights, updates), moments), None

        return jax.lax.scan(step, (weights, moments), rows)[0]

    measure, moments, rng = jax.jit(loss), optimizer.init(weights), np.random.default_rng(settings.seed)
    best, lowest = weights, float("inf")
    for _ in range(0, settings.steps, _EVERY):
        rows = jnp.asarray(rng.integers(len(accepted), size=(_EVERY, settings.rounds)))
        weights, moments = run_steps(weights, moments, rows, labels)
        if (held_out_loss := float(measure(weights, held_out))) < lowest:
            best, lowest = weights, held_out_loss
    if not np.isfinite(lowest):
        raise ValueError("the loss of the predictor is not finite at any step; lower --learning-rate")
    share = float(np.asarray(held_out.accepted)[np.asarray(held_out.compared)].mean())
    base = -sum(p * np.log(max(p, 1e-9)) for p in (share, 1 - share))
    return best, {"loss": lowest, "share": share, "base": base}


def loss(weights: AcceptancePredictor, labels: Labels) -> Float[Array, ""]:
    """Mean cross-entropy over the compared drafts."""
    levels = jnp.arange(1, labels.accepted.shape[1] + 1)
    target, draft, compared = map(jnp.asarray, (labels.target_hidden, labels.draft_hidden, labels.compared))
    top = jnp.where(compared, labels.log_top, 0)  # it may be NaN elsewhere, and the gradient would be too
    logits = jax.vmap(weights, (0, None, 1, 1), 1)(levels, target, draft, top)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels.accepted).astype(jnp.int32))
    return jnp.where(compared, each, 0).sum() / jnp.maximum(compared.sum(), 1)
