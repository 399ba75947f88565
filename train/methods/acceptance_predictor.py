"""`jaxspec-train calibrator`: will the target accept the token just drafted? (EESD, arXiv:2406.03853, Eq. 5)"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.checksums import fingerprint
from jaxspec.checkpoint.heads import HeadConfig, find_head, write_head
from jaxspec.controllers.acceptance_predictor import FOLDER, NAME, AcceptancePredictor, draft_width
from jaxspec.decoding.drafter import Models
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import drafter_of, load_head
from jaxspec.host.atomic import staged_by_all
from jaxspec.host.interrupts import deferred
from jaxspec.host.processes import split_over_hosts
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.train.data.prompts import greedy_requests, load_with_tokenizer
from jaxspec.train.data.text import join
from jaxspec.train.decoding_options import Calibrator
from jaxspec.train.methods.acceptance_labels import Labels, Recorder, collect
from jaxspec.train.run.folder import as_typed, open_run, run_folder
from jaxspec.train.run.heads import default_out, hashes

HELD_OUT = 10  # one text in this many is held out
_EVERY = 50  # steps between measurements
_FEW = 20.0  # factor of the learning rate for the weights [2, 2] of the top probability; the hidden states have many


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
    prompts = fingerprint([np.array(request.tokens, np.int32) for request in requests])
    decided = hashes(model.path, settings.head) | {"the hash of the prompts": prompts}
    typed = as_typed("calibrator", settings, model.target.dtype.name) | decided
    with open_run(run_folder(out, settings.run_dir), typed) as run, staged_by_all(out, 0) as folder:
        found = list(collect(engine, requests, settings.batch_size, run.labels))
        held_out = found[::HELD_OUT] if len(found) > 1 else found
        kept = [part for i, part in enumerate(found) if i % HELD_OUT] or found
        trained, measured = fit(join(kept), join(held_out), settings)
        dtype = settings.save_dtype
        shape = {"target_hidden": recorder.target_hidden, "draft_hidden": narrow, "inputs": trained.inputs}
        with deferred():
            weights = jax.tree.map(lambda array: split_over_hosts(np.asarray(array)), trained)
            chat_args = dict(settings.data.format.arguments) if settings.chat else None
            write_head(folder, HeadConfig(NAME, model.config.model, dtype, dtype, shape, chat_args), weights)
    say(
        f"wrote {out}: a predictor for {drafter.name}, loss {measured['loss']:.3f} on held-out comparisons; a constant "
        f"prediction of their acceptance rate ({measured['share']:.2f}) has {measured['base']:.3f}"
    )
    return trained


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
    few = jax.tree_util.tree_map_with_path(lambda path, _: "top" in jax.tree_util.keystr(path), weights)
    optimizer = optax.chain(optax.adamw(schedule, weight_decay=0.01), optax.masked(optax.scale(_FEW), few))

    @jax.jit
    def some_steps(weights: Any, moments: Any, rows: Array, labels: Labels) -> Any:
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
        weights, moments = some_steps(weights, moments, rows, labels)
        if (found := float(measure(weights, held_out))) < lowest:
            best, lowest = weights, found
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
