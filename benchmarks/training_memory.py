"""Memory of each chip while a head is trained, from the compiler; needs neither weights nor chips.

    python benchmarks/training_memory.py eagle3 --model llama-3.1-70b --topology v5e:4x4
    python benchmarks/training_memory.py eagle --model llama-2-70b --topology v5p:2x2x1 --batch-size 4

Traces the step of `jaxspec-train HEAD` with the head's defaults on sharded shapes, and compiles it for the given TPUs
(pip install 'jax[tpu]'). The bytes of target, head and optimizer on a chip follow from their shardings; the
compiler reports the temporaries. `--layers N` compiles a target of N layers, which is faster, and prints the bytes of
all layers. Temporaries barely depend on the number of layers, because the target has no gradient and hardly anything is
kept from layer to layer.
"""

import argparse
import dataclasses
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxspec.drafters import DRAFTERS
from jaxspec.methods.method import parse_method
from jaxspec.model.backend import use_mesh
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import TRAINING, device_bytes, named_sharding, place, read_sizes
from jaxspec.planning.chips import Slice, parse_slice
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.plan import DTYPE
from jaxspec.planning.program import Compiled
from jaxspec.planning.shapes import Target, find_model, models_of
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.methods import eagle, eagle3
from jaxspec.train.options import Eagle, Eagle3, HeadSettings
from jaxspec.train.run.heads import LONGEST
from jaxspec.train.run.trainer import State, make_optimizer, make_step, start

HEADS: dict[str, tuple[type[HeadSettings], Any]] = {"eagle": (Eagle, eagle.loss), "eagle3": (Eagle3, eagle3.loss)}
"""Settings and loss of each head."""


def default(settings: type[HeadSettings], name: str) -> Any:
    """The default of an option."""
    return next(field.default for field in dataclasses.fields(settings) if field.name == name)


def step_of(name: str, config: LlamaConfig, recipe: Recipe, length: int, mesh: Mesh) -> tuple[Any, tuple]:
    """The training step of a head, and its arguments: sharded shapes of state, target and windows."""
    settings, loss = HEADS[name]
    drafter, optimizer = DRAFTERS[name](), make_optimizer(recipe)
    head = nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(config), nnx.Rngs(0)))
    target = models_of(Target(config), parse_method("plain"), DTYPE).target
    step = make_step(partial(loss, objective=default(settings, "objective")), optimizer, recipe)
    rows: Any = lambda dtype: _row(mesh, (recipe.batch_size, length), dtype)
    windows = Windows(tokens=rows(jnp.int32), segment=rows(jnp.int32), counted=rows(bool))
    return step, (placed_state(place(head, mesh, TRAINING), optimizer, mesh), place(target, mesh), windows)


def _row(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=named_sharding(mesh, ("batch",), shape))


def placed_state(head: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> State:
    """Shapes of the state before the first step: moments are sharded like their parameters, all else is replicated."""
    state = jax.eval_shape(lambda head: start(head, optimizer), head)
    like = lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of.sharding)
    whole: Any = lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=named_sharding(mesh, (), leaf.shape)
    )
    moments = optax.tree.map_params(optimizer, like, state.optimizer, head, transform_non_params=whole)
    return State(step=whole(state.step), params=head, optimizer=moments)


def memory(
    name: str, config: LlamaConfig, where: Slice, sizes: dict[str, int], recipe: Recipe, length: int, layers: int
) -> dict[str, Any]:
    """Bytes on each chip by purpose. The target's bytes include all layers, though only `layers` are compiled."""
    mesh = mesh_on(where, config, **sizes)
    assert isinstance(mesh, Mesh)
    began = time.perf_counter()
    _, (state, target, _) = step_of(name, config, recipe, length, mesh)
    step, given = step_of(name, dataclasses.replace(config, num_layers=layers), recipe, length, mesh)
    with use_mesh(mesh):
        compiled = Compiled.of(step.trace(*given), where)
    held = {"target": device_bytes(target), "head": device_bytes(state.params)}
    held |= {"optimizer": device_bytes(state) - held["head"], "temporaries": compiled and compiled.temporaries}
    total, limit = sum(found or 0 for found in held.values()), int(where.chip.memory)
    about = {"compiled_layers": layers, "compiling_seconds": time.perf_counter() - began}
    return {"fits": compiled is not None and total <= limit, **held, "total": total, "limit": limit, **about}


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", choices=HEADS)
    parser.add_argument("--model", default="llama-3.1-70b", help="name or config.json, as for `jaxspec plan`")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--mesh", help="data=N,model=M (default: data=1, model=all chips)")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--accumulate", type=int)
    parser.add_argument("--context", type=int, default=LONGEST)
    parser.add_argument("--layers", type=int, help="number of the target's layers to compile (default: all)")
    asked = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # no device is needed, and none should be occupied
    config, where = find_model(asked.model).config, parse_slice(asked.topology)
    if not where.is_tpu:
        parser.error(f"{where} are no TPUs")
    sizes = {"data": 1, "model": where.chips} if asked.mesh is None else read_sizes(asked.mesh)
    given = {name: getattr(asked, name) for name in ("batch_size", "accumulate") if getattr(asked, name) is not None}
    recipe = dataclasses.replace(default(HEADS[asked.head][0], "recipe"), dtype=str(DTYPE), **given)
    layers = asked.layers or config.num_layers
    found = memory(asked.head, config, where, sizes, recipe, min(asked.context, config.usable_length), layers)
    about = {"head": asked.head, "model": asked.model, "topology": str(where), "mesh": sizes, "context": asked.context}
    recipe_of = {"batch_size": recipe.batch_size, "accumulate": recipe.accumulate}
    print(json.dumps({**about, **recipe_of, "bytes_per_chip": found}))


if __name__ == "__main__":
    main()
