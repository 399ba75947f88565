"""The training loop of all methods, with bit-exact resume, and the measurements on held-out text."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.loading import Checkpoint, training_dtype
from jaxspec.checkpoint.parameters import access_described
from jaxspec.decoding.drafter import Drafter
from jaxspec.engine.engine import Engine
from jaxspec.engine.statistics import statistics_of
from jaxspec.host import buckets, processes
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.model.sharding import move, place_head, replicate, shard_batch
from jaxspec.train.data import dataset
from jaxspec.train.data.text import Windows, take
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.run.folder import Run
from jaxspec.train.run.log import open_log
from jaxspec.train.run.packed import Loss, Params, Summed, Sums

# Of the texts that `measure_chain` decodes.
PROMPTS = 16
PROMPT_TOKENS = 128
NEW_TOKENS = 64
CHAIN = 5

Measured = dict[str, Any]


@chex.dataclass(frozen=True)
class State:
    """The state of training."""

    step: Int[Array, ""]
    params: Params
    optimizer: optax.OptState


def fit(
    loss: Loss,
    params: Params,
    frozen: Any,
    packed: Windows,
    recipe: Recipe,
    run: Run,
    *,
    measure: Callable[[Params], Measured] | None = None,
    complete: Callable[[Windows], Windows] | None = None,
) -> tuple[Params, Measured | None]:
    """Trains, or resumes training, and returns the best parameters and their measurements.

    Args:
        params: initial parameters; donated.
        frozen: passed to `loss`, such as the target.
        measure: parameters → measurements on held-out text. Their `score` (higher is better) selects the best
            parameters. None: nothing is held out, and the last parameters and None are returned.
        complete: completes every batch before its step, such as with cached features.

    Raises ValueError if there is too little text, or the loss is not finite.
    """
    optimizer = make_optimizer(recipe)
    state, data = replicate(start(params, optimizer)), dataset.batches(packed, recipe.batch_size, recipe.seed)
    # Committed to its devices, as a step's result is. Otherwise the second step would be compiled again.
    state = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, state))
    step, alone = make_step(loss, optimizer, recipe), jax.process_count() == 1
    with open_checkpoints(run.checkpoints) as checkpoints, deferred() as interrupts:
        if checkpoints.latest is not None:
            state = load(checkpoints, checkpoints.latest, state)
            data.set_state(checkpoints.metadata().custom_metadata["data"])
        done = int(state.step)
        file, tokens = run.metrics if processes.is_first() else None, recipe.batch_size * packed.tokens.shape[1]
        with open_log(file, done, recipe.steps, tokens) as log:
            while done < recipe.steps:
                batch = next(data)
                state, measures = step(state, frozen, shard_batch(batch if complete is None else complete(batch)))
                done += 1
                log.step(done, measures)
                measured = None
                if measure is not None and (done % recipe.evaluate_every == 0 or done == recipe.steps):
                    log.flush()
                    measured = measure(state.params)
                    log.evaluation(done, measured)
                due = measured is not None or done % recipe.save_every == 0 or done == recipe.steps
                due |= alone and bool(interrupts.caught)  # a signal reaches one process only
                if due and not bool(_finite(state.params)):  # the last update comes after the last loss
                    raise ValueError(f"the weights after step {done} are not finite; lower --learning-rate")
                if due:
                    log.flush()  # steps before a checkpoint are never repeated
                    buckets.flush()
                    checkpoints.wait()  # for the one before
                    place = {"data": data.get_state()}
                    checkpoints.save_async(done, flat(state), custom_metadata=place, metrics=measured)
                if due and interrupts.caught:
                    checkpoints.wait()
                    say(f"saved at step {done} of {recipe.steps}; the same command resumes from there")
                    interrupts.release()
        checkpoints.wait()
        if not (with_score := [each for each in checkpoints.checkpoints if each.metrics]):
            return state.params, None
        best = max(with_score, key=lambda each: (_score(each.metrics), each.step))
        return load(checkpoints, best, state).params, best.metrics


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[Any]:
    """Orbax's checkpoints in a folder, written while training continues. The last and the best one are kept."""
    import orbax.checkpoint.experimental.v1 as ocp

    policies: Any = ocp.training.preservation_policies
    best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
    keep = policies.AnyPreservationPolicy([policies.LatestN(1), best])
    place = str(folder.absolute())
    with (
        access_described(folder),
        ocp.training.Checkpointer(place, preservation_policy=keep, cleanup_tmp_directories=True) as checkpoints,
    ):
        yield checkpoints


def _score(metrics: Any) -> float:
    return metrics["score"]


def flat(state: State) -> dict[str, jax.Array]:
    """The arrays of a state by name, as checkpoints have them."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def load(checkpoints: Any, step: Any, like: State) -> State:
    """The state in a checkpoint."""
    loaded = checkpoints.load(step, names := flat(like))
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in names])


@jax.jit
def _finite(params: Params) -> Bool[Array, ""]:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def start(params: Params, optimizer: optax.GradientTransformation) -> State:
    """The state before the first step."""
    return State(step=jnp.zeros((), jnp.int32), params=params, optimizer=optimizer.init(params))


def make_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """The optimizer of a recipe: gradient clipping, then AdamW or Muon with warm-up and a cosine schedule."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=recipe.learning_rate,
        warmup_steps=min(recipe.warmup, recipe.steps // 10),
        decay_steps=recipe.steps,
        end_value=recipe.learning_rate / 10,
    )
    matrices = lambda params: jax.tree.map(lambda param: param.ndim > 1, params)
    adamw = optax.adamw(rate, b1=recipe.b1, b2=recipe.b2, weight_decay=recipe.weight_decay, mask=matrices)
    muon = optax.contrib.muon(rate, weight_decay=recipe.weight_decay, consistent_rms=0.2)
    optimizers = {"adamw": adamw, "muon": optax.partition({"hidden": muon, "others": adamw}, kinds_of)}
    clips = {"norm": optax.clip_by_global_norm, "value": optax.clip}
    return optax.chain(clips[recipe.clip_by](recipe.clip), optimizers[recipe.optimizer])


def kinds_of(params: Params) -> Params:
    """`hidden` for each matrix between hidden states; `others` for vectors, and for matrices with the vocabulary."""
    of_vocabulary = lambda path: re.search(r"\b(embedding|lm_head\.kernel)\b", jax.tree_util.keystr(path))
    kind = lambda path, param: "hidden" if param.ndim == 2 and not of_vocabulary(path) else "others"
    return jax.tree_util.tree_map_with_path(kind, params)


def make_step(
    loss: Loss, optimizer: optax.GradientTransformation, recipe: Recipe
) -> Callable[[State, Any, Windows], tuple[State, Sums]]:
    """A compiled training step: (state, frozen, batch) → (state, metrics). The state is donated.

    A batch is computed in `recipe.accumulate` parts, each with a random key of its own. Gradient and metrics are means
    over all tokens of the batch that count, so the number of parts changes only rounding and random draws.
    """
    parts, root, dtype = recipe.accumulate, jax.random.key(recipe.seed), training_dtype(recipe.dtype)

    def total(params: Params, frozen: Any, part: Windows, key: Array) -> Summed:
        value, sums = loss(optax.tree.cast(params, dtype), frozen, part, key)
        return value, {"loss": value, **sums}

    of_part = jax.grad(total, has_aux=True)

    def step(state: State, frozen: Any, batch: Windows) -> tuple[State, Sums]:
        keys = jax.random.split(jax.random.fold_in(root, state.step), parts)
        if parts == 1:
            gradient, sums = of_part(state.params, frozen, batch, keys[0])
        else:
            cut = jax.tree.map(lambda rows: rows.reshape(parts, -1, *rows.shape[1:]), batch)
            part_of = lambda i: jax.tree.map(lambda rows: rows[i], cut)
            first = of_part(state.params, frozen, part_of(0), keys[0])
            add = lambda i, so_far: jax.tree.map(jnp.add, so_far, of_part(state.params, frozen, part_of(i), keys[i]))
            gradient, sums = jax.lax.fori_loop(1, parts, add, first)
        mean = 1 / jnp.maximum(sums["count"], 1)
        gradient = jax.tree.map(lambda slope: slope * mean, gradient)
        updates, moments = optimizer.update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        rows_of = lambda name: jnp.maximum(sums.get(f"{name}/rows", sums["count"]), 1)
        shown = [name for name in sums if name != "count" and not name.endswith("/rows")]
        means = {name: sums[name] / rows_of(name) for name in shown}
        return State(step=state.step + 1, params=params, optimizer=moments), means

    return jax.jit(step, donate_argnums=0)


def measurement(
    loss: Loss, held_out: Windows, recipe: Recipe, frozen: Any, chain: Callable[[Params], Measured] | None = None
) -> Callable[[Params], Measured]:
    """A function from parameters to the held-out `loss`, the measurements of `chain`, and a `score`: tau, or -loss."""
    lost = mean_loss(loss, held_out, recipe.batch_size // recipe.accumulate)

    def measure(params: Params) -> Measured:
        measured = {"loss": lost(params, frozen)} | ({} if chain is None else chain(params))
        return {**measured, "score": measured.get("tau", -measured["loss"])}

    return measure


def mean_loss(loss: Loss, packed: Windows, batch_size: int) -> Callable[[Params, Any], float]:
    """A function (parameters, frozen) → mean loss over all windows, without noise. Padding rows do not count."""
    compiled = jax.jit(lambda params, frozen, batch: loss(params, frozen, batch, None))

    def measure(params: Params, frozen: Any) -> float:
        total = count = 0.0
        for start in range(0, len(packed.tokens), batch_size):
            rows = np.arange(start, start + batch_size)
            real = rows < len(packed.tokens)
            batch = take(packed, np.where(real, rows, 0))
            batch = shard_batch(dataclasses.replace(batch, counted=batch.counted & real[:, None]))
            value, sums = compiled(params, frozen, batch)
            total, count = total + float(value), count + float(sums["count"])
        return total / max(count, 1)

    return measure


def measure_chain(model: Checkpoint, drafter: Drafter, held_out: Windows) -> Callable[[Params], Measured]:
    """A function from a drafter's weights to `tau` and n-α (EAGLE, Table 2) of chains of 5, decoded by the engine.

    Decoding is greedy. The prompts are the beginnings of held-out windows, the same each time, without padding.
    """
    rows = np.unique(np.linspace(0, len(held_out.tokens) - 1, PROMPTS).astype(int)).tolist()
    room = min(model.config.model.usable_length - CHAIN - 1, held_out.tokens.shape[1])
    length = max(1, min(PROMPT_TOKENS, room // 2))
    prompts = [held_out.tokens[row][: max(1, min(length, text_length(held_out, row) // 2))].tolist() for row in rows]
    method = Method(drafter, Chain(length=CHAIN))

    def measure(weights: Params) -> Measured:
        weights = optax.tree.cast(weights, model.target.dtype)
        placed = weights if model.mesh is None else move(weights, place_head(weights, model.mesh))
        texts = Engine(model, method, draft=placed).generate(prompts, max_new_tokens=min(NEW_TOKENS, room - length))
        statistics = statistics_of([each.history for each in texts])
        return {"tau": statistics.tau, "acceptance": list(statistics.acceptance_by_position)}

    return measure


def text_length(packed: Windows, row: int) -> int:
    """Tokens of a window before its padding: a last run of one token that does not count."""
    padding = (packed.tokens[row] == packed.tokens[row][-1]) & ~np.asarray(packed.counted[row])
    return len(padding) - int(padding[::-1].argmin())
