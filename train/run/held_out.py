"""Measurements on held-out text: the loss, and the acceptance of a head's drafts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from jaxspec.builders.chain import Chain
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.drafter import Drafter
from jaxspec.engine.engine import Engine
from jaxspec.engine.statistics import statistics_of
from jaxspec.methods.method import Method
from jaxspec.model.sharding import move, place_head, shard_batch
from jaxspec.train.data.text import Windows, take
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.run.packed import Loss, Params

PROMPTS = 16
PROMPT_TOKENS = 128
NEW_TOKENS = 64
CHAIN = 5

Measured = dict[str, Any]


def measurement(
    loss: Loss, held_out: Windows, recipe: Recipe, frozen: Any, chain: Callable[[Params], Measured] | None = None
) -> Callable[[Params], Measured]:
    """A function from parameters to the held-out `loss`, the measurements of `chain`, and a `score` (higher is better):
    the chains' `tau`, or without `chain` minus the loss."""
    lost = mean_loss(loss, held_out, recipe.batch_size // recipe.accumulate)

    def measure(params: Params) -> Measured:
        measured = {"loss": lost(params, frozen)} | ({} if chain is None else chain(params))
        return {**measured, "score": measured.get("tau", -measured["loss"])}

    return measure


def mean_loss(loss: Loss, packed: Windows, batch_size: int) -> Callable[[Params, Any], float]:
    """A function (parameters, frozen) → mean loss over all windows, without noise. Rows that pad do not count."""
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
