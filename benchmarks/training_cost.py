"""The cost of a training step: an early exit beside EAGLE, Medusa and draft models (EESD, Table 6).

    python benchmarks/training_cost.py compiled   # at the shapes of LLaMA-2 13B; allocates no arrays
    python benchmarks/training_cost.py seconds    # on the builtin target, the steps taking turns

`compiled` prints the operations of each step (10¹²) and its memory: the head, the optimizer's state and the target, and
what the compiler adds for the step on a CPU. `draft-model` is EDD's vanilla draft model of one
layer, and `draft-model-7b` a LLaMA-2 7B, as in the paper.
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
from jaxspec.drafters import DRAFTERS
from jaxspec.drafters.early_exit import default_first
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.planning.shapes import find_model
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation, EagleObjective, Recipe
from jaxspec.train.methods import draft_model, eagle, early_exit, medusa
from jaxspec.train.run.trainer import make_optimizer, make_step, start

LLAMA_7B, LLAMA_13B = find_model("llama-2-7b").config, find_model("llama-2-13b").config
REPEATS = 15


def steps(model: LlamaConfig, recipe: Recipe) -> dict[str, tuple[Any, Any, Any]]:
    """By head: the jitted step, a function that builds the head, and shapes of the part of the target that it uses."""
    losses = {
        "eagle": functools.partial(eagle.loss, objective=EagleObjective()),
        "early-exit": early_exit.loss,
        "medusa": functools.partial(medusa.loss, decay=0.8),
        "draft-model": functools.partial(draft_model.loss, objective=Distillation()),
    }
    optimizer, found = make_optimizer(recipe), {}
    for name, loss in losses.items():
        drafter = DRAFTERS[name]()
        shape = drafter.head_for(model)
        build = lambda drafter=drafter, shape=shape: drafter.build_head(shape, nnx.Rngs(0))
        cut = early_exit.bottom_config(model, shape.settings["first"]) if name == "early-exit" else model
        found[name] = (make_step(loss, optimizer, recipe), build, abstract(cut))
    return found


def compiled(batch: int = 1, length: int = 2048) -> None:
    """Prints operations and gigabytes of each compiled step, from shapes alone."""
    found: dict[str, dict[str, float]] = {}
    recipe = Recipe(steps=10, batch_size=batch, learning_rate=1e-3)
    shape: Any = lambda dtype: jax.ShapeDtypeStruct((batch, length), dtype)
    windows = Windows(tokens=shape(jnp.int32), segment=shape(jnp.int32), counted=shape(bool))
    every = steps(LLAMA_13B, recipe)
    step, _, target = every["draft-model"]
    every["draft-model-7b"] = (step, lambda: Llama(LLAMA_7B, rngs=nnx.Rngs(0)), target)
    for name, (step, build, frozen) in every.items():
        state = jax.eval_shape(lambda build=build: start(build(), make_optimizer(recipe)))
        program = step.lower(state, frozen, windows).compile()
        memory = program.memory_analysis()
        found[name] = {
            "tera_operations": program.cost_analysis()["flops"] / 1e12,
            "gigabytes": (memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 1e9,
        }
    print(json.dumps({"methods": found}))


def seconds(batch: int = 8) -> None:
    """Prints the median seconds of each step on the builtin target, at its context."""
    target = load("builtin", "float32")
    model = target.config.model
    recipe = Recipe(steps=10, batch_size=batch, learning_rate=1e-3)
    tokens = jax.random.randint(jax.random.key(0), (batch, model.max_length), 0, model.vocab_size)
    windows = Windows(tokens=tokens, segment=jnp.zeros_like(tokens), counted=jnp.ones(tokens.shape, bool))
    bottom = early_exit.load_bottom(FOLDER, target.config, default_first(model.num_layers), jnp.dtype("float32"))
    running, frozen = {}, {}
    for name, (step, build, _) in steps(model, recipe).items():
        frozen[name] = bottom if name == "early-exit" else target.target
        state, _ = step(start(build(), make_optimizer(recipe)), frozen[name], windows)  # compiles
        running[name] = (step, state)
    samples: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(REPEATS):
        for name, (step, state) in running.items():
            began = time.perf_counter()
            state, _ = jax.block_until_ready(step(state, frozen[name], windows))
            samples[name].append(time.perf_counter() - began)
            running[name] = (step, state)
    print(json.dumps({"methods": {name: {"seconds": statistics.median(found)} for name, found in samples.items()}}))


if __name__ == "__main__":
    if sys.argv[1:] == ["compiled"]:
        compiled()
    elif sys.argv[1:] == ["seconds"]:
        seconds()
    else:
        sys.exit(__doc__)
