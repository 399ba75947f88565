"""The cost of a training step of an early exit, compared with an EAGLE head (EESD, Table 6).

    python benchmarks/training_cost.py flops      # compiled FLOPs at the shapes of LLaMA-2 13B; allocates no arrays
    python benchmarks/training_cost.py seconds    # seconds on the builtin target, both steps taking turns

The paper compares with Medusa and a separate 7B model (Table 6: 1.6 s a batch against 9.5 s and 15.5 s at 13B). EAGLE
runs the whole target in a step, as Medusa does.
"""

import functools
import json
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import abstract
from jaxspec.drafters import DRAFTERS, Eagle, EarlyExit
from jaxspec.drafters.early_exit import default_first
from jaxspec.model.config import LlamaConfig
from jaxspec.train.data.text import Windows
from jaxspec.train.methods import eagle, early_exit
from jaxspec.train.run.trainer import make_optimizer, make_step, start
from jaxspec.train.settings.heads import EagleObjective
from jaxspec.train.settings.recipe import Recipe

LLAMA_13B = LlamaConfig(
    vocab_size=32000,
    hidden_size=5120,
    intermediate_size=13824,
    num_layers=40,
    num_heads=40,
    num_kv_heads=40,
    head_dim=128,
    max_length=4096,
)
REPEATS = 15


def steps(model: LlamaConfig, recipe: Recipe) -> dict[str, tuple[Any, Any, Any]]:
    """By head: the jitted step, a function that builds the head, and shapes of the part of the target that it uses."""
    optimizer = make_optimizer(recipe)
    shapes = {"eagle": Eagle().head_for(model), "early-exit": EarlyExit().head_for(model)}
    losses = {"eagle": functools.partial(eagle.loss, objective=EagleObjective()), "early-exit": early_exit.loss}
    cut = early_exit.bottom_config(model, shapes["early-exit"].settings["first"])
    frozen = {"eagle": abstract(model), "early-exit": abstract(cut)}
    head = lambda name: lambda: DRAFTERS[name]().build_head(shapes[name], nnx.Rngs(0))
    return {name: (make_step(losses[name], optimizer, recipe), head(name), frozen[name]) for name in losses}


def flops(batch: int = 1, length: int = 2048) -> dict[str, float]:
    """Floating-point operations of each compiled step, from shapes alone."""
    recipe = Recipe(steps=10, batch_size=batch, learning_rate=1e-3)
    shape: Any = lambda dtype: jax.ShapeDtypeStruct((batch, length), dtype)
    windows = Windows(tokens=shape(jnp.int32), segment=shape(jnp.int32), counted=shape(bool))
    found = {}
    for name, (step, head, frozen) in steps(LLAMA_13B, recipe).items():
        state = jax.eval_shape(lambda head=head: start(head(), make_optimizer(recipe)))
        found[name] = step.lower(state, frozen, windows).compile().cost_analysis()["flops"]
    return found


def seconds(batch: int = 8) -> dict[str, float]:
    """Median seconds of each step on the builtin target, at its context."""
    target = load("builtin", "float32")
    model = target.config.model
    recipe = Recipe(steps=10, batch_size=batch, learning_rate=1e-3)
    tokens = jax.random.randint(jax.random.key(0), (batch, model.max_length), 0, model.vocab_size)
    windows = Windows(tokens=tokens, segment=jnp.zeros_like(tokens), counted=jnp.ones(tokens.shape, bool))
    bottom = early_exit.load_bottom(FOLDER, target.config, default_first(model.num_layers), jnp.dtype("float32"))
    frozen = {"eagle": target.target, "early-exit": bottom}
    running = {}
    for name, (step, head, _) in steps(model, recipe).items():
        state, _ = step(start(head(), make_optimizer(recipe)), frozen[name], windows)  # compiles
        running[name] = (step, state)
    samples: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(REPEATS):
        for name, (step, state) in running.items():
            began = time.perf_counter()
            state, _ = jax.block_until_ready(step(state, frozen[name], windows))
            samples[name].append(time.perf_counter() - began)
            running[name] = (step, state)
    return {name: statistics.median(found) for name, found in samples.items()}


if __name__ == "__main__":
    if sys.argv[1:] not in (["flops"], ["seconds"]):
        sys.exit(__doc__)
    measured = flops() if sys.argv[1] == "flops" else seconds()
    print(json.dumps({**measured, "ratio": measured["early-exit"] / measured["eagle"]}, indent=2))
