"""Compiles the large programs of benchmarks/accelerator.py, up to its step `rounds`, for a GPU that is not here.

python -m tests.gpu_programs [--quick]

It needs the packages of the extra `plan-cuda`, and prints the seconds of each program. --quick takes tiny shapes.
"""

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

from benchmarks import accelerator_steps as steps
from benchmarks import replay
from jaxspec.costs.jobs import verify_many
from jaxspec.engine.program import Program
from jaxspec.methods.method import parse_method
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.program import PlacedProgram
from jaxspec.planning.shapes import Target, models_of


def compile_all(scale: steps.Scale, device: str) -> dict[str, float]:
    """Seconds that compiling takes for each program."""
    mesh: Any = mesh_on(parse_slice(device), scale.shape, 1, 1)
    seconds: dict[str, float] = {}

    def place(name: str, layers: int) -> PlacedProgram:
        method, shape = parse_method(name), dataclasses.replace(scale.shape, num_layers=layers)
        models = models_of(Target(shape), method, jnp.dtype(scale.dtype))
        program = Program(replay.replayed(name, models.draft, steps.ACCEPTANCE), models)
        return PlacedProgram.place(program, 1, scale.rows, mesh)

    def compiled(name: str, trace: Callable[..., Any], *given: Any) -> None:
        began = time.perf_counter()
        with jax.set_mesh(mesh):
            trace(*given).lower().compile()
        seconds[name] = time.perf_counter() - began
        print(f"{name}: {seconds[name]:.1f} s", flush=True)

    few, whole = place(replay.PLAIN, scale.trial), place(replay.PLAIN, scale.shape.num_layers)
    compiled(f"loop of plain, {scale.trial} layers", few.trace)
    compiled(f"one round, {scale.trial} layers", steps.one_plain_round.trace, few.spec, few.models, few.state)
    for nodes in scale.methods.values():
        tokens = jax.ShapeDtypeStruct((1, nodes), jnp.int32, sharding=whole.state.length.sharding)
        given = whole.models.target, tokens, whole.state.cache, whole.state.length, whole.arguments[2]
        compiled(f"forward of {nodes}", verify_many.trace, *given)
    for name in scale.methods:
        placed = place(name, scale.shape.num_layers)
        compiled(f"loop of {name}", placed.trace)
        if name != replay.PLAIN:
            compiled(f"drafting of {name}", steps.drafting.trace, placed.spec, *placed.arguments)
    return seconds


if __name__ == "__main__":
    took = compile_all(steps.QUICK if "--quick" in sys.argv else steps.FULL, "h100-80g:1").values()
    print(f"{len(took)} programs in {sum(took):.0f} s")
