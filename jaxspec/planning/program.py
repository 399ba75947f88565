"""A program for chips that may be absent: its mesh, and the loop traced and counted on abstract arguments."""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxspec.builders import Chain
from jaxspec.controllers import Fixed
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import draft
from jaxspec.decoding.prefill import trace_prefill
from jaxspec.decoding.prefill_buckets import SMALLEST_CACHE
from jaxspec.decoding.speculation import Speculation
from jaxspec.engine.program import LOOP, Program, program_of
from jaxspec.host.libtpu import expect_no_chip
from jaxspec.methods.method import Method
from jaxspec.model import sharding
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import AXES, AnyMesh, make_mesh, model_axis_sizes, named_sharding, split_mesh
from jaxspec.planning import counting
from jaxspec.planning.chips import Slice
from jaxspec.planning.gpus import can_compile, gpus
from jaxspec.planning.work import Parts, Work


class NoCompilerError(Exception):
    """The TPU compiler, libtpu, is not installed."""


@dataclasses.dataclass(frozen=True)
class PlacedProgram:
    """A decoding loop and its arguments: `jax.ShapeDtypeStruct`s with shardings."""

    spec: Speculation
    models: Models
    state: DecodeState
    mesh: AnyMesh

    @classmethod
    def place(cls, program: Program, batch: int, rows: int, mesh: AnyMesh) -> "PlacedProgram":
        """A program for `batch` sequences with caches of `rows` rows on a mesh."""
        models, state = program.layout(batch, rows, mesh)
        return cls(program.spec, models, state, mesh)

    @property
    def arguments(self) -> tuple[Models, DecodeState, jax.ShapeDtypeStruct]:
        """The arguments of `loop.decode`: models, state, and the number of rounds."""
        rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=named_sharding(self.mesh, (), ()))
        return self.models, self.state, rounds

    def trace(self) -> Any:
        """Traces the loop for the devices of the mesh."""
        with _current(self.mesh):
            return LOOP.trace(self.spec, *_for(self.mesh, self.arguments))

    def trace_prefill(self, chunk: int) -> Any:
        """Traces prefill, which reads `chunk` tokens of each prompt at a time."""
        with _current(self.mesh):
            models, state = _for(self.mesh, (self.models, self.state))
            return trace_prefill(self.spec.drafter, models, state, chunk)

    def prefill_work(self, prompt: int) -> Work:
        """Minimum work of the target on each chip for prompts of `prompt` tokens: products, and weights read once.

        Each token attends to itself and the tokens before it. The LM head, which only the last token needs, is not
        counted.
        """
        target, batch = self.models.target, self.state.tokens.shape[0] // self.mesh.shape["data"]
        config = target.config
        held = sharding.device_elements(target.layers)
        asked = config.experts_per_token / config.num_experts if config.num_experts else 1
        experts = sharding.device_elements([layer.mlp for layer in target.layers]) if config.num_experts else 0
        heads = config.num_heads / (self.mesh.shape["kv"] * self.mesh.shape["group"] * self.mesh.shape["rows"])
        attending = 4 * config.num_layers * heads * config.head_dim * prompt * (prompt + 1) / 2
        flops = batch * (2 * prompt * (held - experts * (1 - asked)) + attending)
        kv = sharding.device_bytes(self.state.cache) * prompt / self.state.tokens.shape[1]
        return Work(flops, sharding.device_bytes(target.layers) + kv)

    def count(self, traced: Any) -> Parts:
        """Work of the parts of a round on each chip, counted from shapes."""
        return counting.count(traced, self.arguments, self.mesh)

    def count_drafting(self) -> Parts:
        """Like `count`, for drafting alone, which is faster to trace. Work outside a level counts as committing."""

        def drafting(models: Models, state: DecodeState, rounds: Any) -> Any:
            return draft(self.spec, models, state, state.keys)

        with _current(self.mesh):
            return self.count(jax.jit(drafting).trace(*_for(self.mesh, self.arguments)))


def chain_on_one_chip(method: Method, models: Models) -> Parts:
    """Work of a round that drafts a chain of two levels, for one sequence on one chip. The builder is ignored."""
    chain = dataclasses.replace(method, builder=Chain(length=2), controller=Fixed(), history=0)
    placed = PlacedProgram.place(program_of(chain, models, greedy=True), 1, SMALLEST_CACHE, one_chip())
    return placed.count(placed.trace())


def one_chip() -> AbstractMesh:
    """An abstract mesh of one chip."""
    return _abstract((1,) * len(AXES))


def mesh_on(where: Slice, config: LlamaConfig, data: int, model: int, rows: int = 1) -> AnyMesh:
    """The mesh of a model on these chips; an abstract mesh for GPUs if their compiler is not installed.

    Raises:
        NoCompilerError: the chips are TPUs, and libtpu is not installed.
        ValueError: there is no such TPU topology.
    """
    if where.is_tpu or can_compile():
        devices = tpus(where) if where.is_tpu else gpus(where)
        return split_mesh(make_mesh(data=data, model=model, rows=rows, devices=devices), config)
    return _abstract((data, *model_axis_sizes(model, config), rows))


def tpus(where: Slice) -> Sequence[Any]:
    """The TPUs of a slice, as devices for the compiler only. Raises as `mesh_on`."""
    if importlib.util.find_spec("libtpu") is None:
        raise NoCompilerError(
            "planning needs the TPU compiler (but no TPU), which is not installed: pip install 'jax-specdec[tpu]'"
        )
    from jax.experimental import topologies

    expect_no_chip()
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is used, so no lock is needed
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=str(where)).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"{where} is not a TPU slice: {' '.join(str(error).split())}") from error


def _abstract(sizes: tuple[int, ...]) -> AbstractMesh:
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _current(mesh: AnyMesh) -> contextlib.AbstractContextManager:
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else contextlib.nullcontext()


def _for(mesh: AnyMesh, arguments: Any) -> Any:
    """The arguments for tracing; without shardings on an abstract mesh."""
    if isinstance(mesh, Mesh):
        return arguments
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
