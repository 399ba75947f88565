"""A method's loop on chips that are not here, for a shape that stands for a model."""

import jax.numpy as jnp

from jaxspec.engine.program import Program
from jaxspec.methods.method import parse_method
from jaxspec.model.backend import ACCELERATOR_TREE_SIZES
from jaxspec.model.config import LlamaConfig
from jaxspec.planning.chips import Slice, parse_slice
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.program import Compiled, PlacedProgram
from jaxspec.planning.shapes import Target, models_of


def placed(
    config: LlamaConfig,
    where: str,
    name: str = "plain",
    *,
    data: int = 1,
    split: int = 1,
    batch: int = 1,
    rows: int = 2048,
    quantize: str | None = None,
) -> PlacedProgram:
    """The loop of a method: sequences sharded `data` ways, and the cache's rows `split` ways."""
    method, chips = parse_method(name), parse_slice(where)
    models = models_of(Target(config, quantize=quantize), method, jnp.dtype("bfloat16"))
    program = Program(method.speculation(True, tree_sizes=ACCELERATOR_TREE_SIZES), models)
    mesh = mesh_on(chips, config, data, chips.chips // data // split, split)
    return PlacedProgram.place(program, batch, rows, mesh)


def compiled(program: PlacedProgram, where: Slice) -> Compiled:
    found = Compiled.of(program.traced, where)
    assert found is not None, "it does not fit"
    return found
