"""A small LLaMA from scratch: tokenizer, windows, AdamW on the next token, checkpoint."""

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxspec import cache, caches, checkpoint
from jaxspec.checkpoint import CheckpointConfig
from jaxspec.config import LlamaConfig
from jaxspec.convert.files import staged
from jaxspec.convert.interrupts import deferred
from jaxspec.convert.progress import say
from jaxspec.llama import Llama, forward, unembed
from jaxspec.train import text, tokenizer
from jaxspec.train.text import Document, Windows

_EVALUATED = 256  # held-out windows, at most
_SECONDS = 5  # between lines of progress
_FRAME = 0.25  # between updates of the bar


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        learning_rate: its peak, after a warm-up over a tenth of the steps (100 at most); a cosine takes it to a tenth.
        weight_decay: of matrices; vectors are not decayed.
        clip: largest norm of the whole gradient.
        seed: of the initial weights and of the order of the text.
    """

    steps: int = 200
    batch_size: int = 16
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be below 0, not {getattr(self, name)}")


@chex.dataclass(frozen=True)
class State:
    """What a step turns into the next."""

    model: Llama
    optimizer: optax.OptState


def shape(vocab_size: int, layers: int, hidden_size: int, head_dim: int, context: int) -> LlamaConfig:
    """A LLaMA with the family's proportions: the MLP 8/3 as wide as the stream, up to a multiple of 32."""
    if context < 2:
        raise ValueError(f"--context must be at least 2, one token to see and one to predict, not {context}")
    if head_dim < 1 or hidden_size < 1 or hidden_size % head_dim:
        raise ValueError(f"--hidden-size {hidden_size} is not a multiple of --head-dim {head_dim}")
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=math.ceil(hidden_size * 8 / 3 / 32) * 32,
        num_layers=layers,
        num_heads=hidden_size // head_dim,
        num_kv_heads=hidden_size // head_dim,
        head_dim=head_dim,
        max_length=context,
    )


def train(out: Path, found: list[Document], model: LlamaConfig, recipe: Recipe) -> float | None:
    """Trains a model on documents and writes the checkpoint `out`, whole or not at all.

    Args:
        out: folder to make; must not exist.
        found: the documents; those whose name `text.is_held_out` only measure the result.
        model: shape of the model; its `max_length` is the length of the windows.

    Returns:
        The held-out loss, nats a token; None where no document was held out.

    Raises:
        ValueError: too little text, or a learning rate that makes the loss overflow.
        CheckpointError: `out` exists, or the folder that is to hold it does not.
        DiskFullError: no room.
    """
    caches.keep_compilations()
    with staged(out, checkpoint.required_bytes(model, "float32")) as folder:
        kept, held_out = text.split(found)
        if not kept:
            raise ValueError("there is too little text: every file in it is one that is held out; add text")
        say(f"learning a vocabulary of {model.vocab_size} tokens from {len(kept)} files")
        learnt = tokenizer.learn([document.text for document in kept], model.vocab_size)
        tokenizer.save(learnt, folder, model.max_length)

        packed = pack(learnt, shuffled(kept, recipe.seed), model.max_length, recipe.steps * recipe.batch_size)
        trained = fit(Llama(model, rngs=nnx.Rngs(recipe.seed)), packed, recipe)
        held_out_loss = None
        if held_out:
            packed = pack(learnt, shuffled(held_out, 0), model.max_length, _EVALUATED)
            held_out_loss = evaluate(trained, packed, recipe.batch_size)

        checkpoint.write_config(folder, describe(model))
        with deferred():
            checkpoint.write_params(folder / "params", checkpoint.module_to_dict(trained).items())
    measured = "no file was held out" if held_out_loss is None else f"held-out loss {held_out_loss:.3f}"
    say(f"wrote {out}: llama, {checkpoint.parameter_count(model):,} parameters, float32, {measured}")
    return held_out_loss


def describe(model: LlamaConfig) -> CheckpointConfig:
    """The `config.json` of a model that was made here."""
    return CheckpointConfig(
        family="llama",
        model=model,
        dtype="float32",
        source_dtype="float32",
        source_format="jaxspec",
        bos=tokenizer.BOS_ID,
        eos=(tokenizer.EOS_ID,),
    )


def shuffled(found: list[Document], seed: int) -> list[Document]:
    """The documents in an order that only the seed decides."""
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]


def pack(learnt: Any, found: list[Document], length: int, count: int) -> Windows:
    """The first `count` windows of the documents, or all there are; text beyond those is not even encoded."""
    encoded = tokenizer.encode(learnt, [document.text for document in found], enough=count * length)
    packed = text.windows(encoded, length, tokenizer.EOS_ID)
    return text.take(packed, slice(count))


def fit(model: Llama, packed: Windows, recipe: Recipe) -> Llama:
    """Trains a model for `recipe.steps` steps. Its own arrays are donated: use what is returned."""
    optimizer = make_optimizer(recipe)
    state, step = start(model, optimizer), make_step(optimizer)
    with progress(recipe.steps, recipe.batch_size * packed.tokens.shape[1]) as report:
        for batch in islice(text.batches(packed, recipe.batch_size, recipe.seed), recipe.steps):
            state, value = step(state, batch)
            report(value)
    return state.model


def start(model: Llama, optimizer: optax.GradientTransformation) -> State:
    """The state before the first step."""
    params: Any = model  # a pytree, which Optax takes and its types do not know
    return State(model=model, optimizer=optimizer.init(params))


def make_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW under a warm-up and a cosine, its gradient clipped."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=recipe.learning_rate,
        warmup_steps=min(recipe.steps // 10, 100),
        decay_steps=recipe.steps,
        end_value=recipe.learning_rate / 10,
    )
    matrices = lambda params: jax.tree.map(lambda param: param.ndim > 1, params)
    adamw = optax.adamw(rate, b2=0.95, weight_decay=recipe.weight_decay, mask=matrices)
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adamw)


def make_step(optimizer: optax.GradientTransformation) -> Callable[[State, Windows], tuple[State, Float[Array, ""]]]:
    """One step of training, compiled; the state that goes in is donated to the one that comes out."""

    def step(state: State, batch: Windows) -> tuple[State, Float[Array, ""]]:
        value, gradient = jax.value_and_grad(loss)(state.model, batch)
        params: Any = state.model
        updates, moments = optimizer.update(gradient, state.optimizer, params)
        model: Any = optax.apply_updates(params, updates)
        return State(model=model, optimizer=moments), value

    return jax.jit(step, donate_argnums=0)


def loss(model: Llama, batch: Windows) -> Float[Array, ""]:
    """Cross-entropy of the next token, averaged over the tokens that count."""
    logits = predict(model, batch)[:, :-1]
    each = optax.softmax_cross_entropy_with_integer_labels(logits, batch.tokens[:, 1:])
    counted = batch.counted[:, 1:]
    return (each * counted).sum() / jnp.maximum(counted.sum(), 1)


def predict(model: Llama, batch: Windows) -> Float[Array, "B T V"]:
    """Logits of every window at every token."""
    mask = visible(batch)
    rows, config = batch.tokens.shape[0], model.config
    # The forward attends over a cache too: one row of it, which nobody sees.
    empty, cached = cache.allocate(config, rows, 1, model.embedding[...].dtype), jnp.zeros(rows, jnp.int32)
    return unembed(model, forward(model, jnp.asarray(batch.tokens), mask.sum(-1) - 1, mask, empty, cached).hidden)


def visible(batch: Windows) -> Bool[Array, "B T T"]:
    """Which tokens each token sees: itself and those before it in its document. So their number is its position + 1."""
    same = batch.segment[:, :, None] == batch.segment[:, None, :]
    return jnp.tril(same)


def evaluate(model: Llama, packed: Windows, batch_size: int) -> float:
    """The loss over all windows; the rows that fill up the last batch do not count."""
    measure, total, tokens = jax.jit(loss), 0.0, 0
    for start in range(0, len(packed.tokens), batch_size):
        rows = np.arange(start, start + batch_size)
        real = rows < len(packed.tokens)
        batch = text.take(packed, np.where(real, rows, 0))
        batch = Windows(tokens=batch.tokens, segment=batch.segment, counted=batch.counted & real[:, None])
        count = int(batch.counted[:, 1:].sum())
        total += float(measure(model, batch)) * count
        tokens += count
    return total / tokens


@contextlib.contextmanager
def progress(steps: int, tokens_a_step: int) -> Iterator[Callable[[Float[Array, ""]], None]]:
    """Yields a function that is told the loss of every step: a bar on a terminal, a line every few seconds elsewhere.

    The loss is waited for only when it is shown, so that the device need not wait for the host in between.

    Raises:
        ValueError: the loss is not finite when shown or at the end.
    """
    started = shown = time.monotonic()
    done, last = 0, math.nan

    def report(value: Float[Array, ""]) -> None:
        nonlocal done, shown, last
        done += 1
        if done == steps or time.monotonic() - shown >= every:
            last = float(value)
            shown = time.monotonic()
            show(done, last, done * tokens_a_step / (shown - started))
            if not math.isfinite(last):
                raise ValueError(f"the loss at step {done} is {last}; lower --learning-rate")

    if not sys.stderr.isatty():
        every = _SECONDS

        def show(step: int, value: float, rate: float) -> None:
            left = (steps - step) * tokens_a_step / rate
            say(f"step {step} of {steps}: loss {value:.3f}, {rate:,.0f} tokens/s, {left:.0f} s left")

        yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    every = _FRAME
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=steps)

        def show(step: int, value: float, rate: float) -> None:
            bar.update(task, completed=step, description=f"loss {value:.3f}  {rate:,.0f} tokens/s")

        yield report
