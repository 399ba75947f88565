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
from jaxspec.model import placement
from jaxspec.model.config import LlamaConfig
from jaxspec.model.mesh import AXES, AnyMesh, make_mesh, parts, split
from jaxspec.model.mesh_rules import sharding
from jaxspec.planning import counting
from jaxspec.planning.chips import Slice
from jaxspec.planning.gpus import can_compile, gpus
from jaxspec.planning.work import Parts, Work


class NoCompilerError(Exception):
    """What compiles for TPUs is not installed."""


@dataclasses.dataclass(frozen=True)
class PlacedProgram:
    """A loop and what it is called with: `jax.ShapeDtypeStruct`s with shardings."""

    spec: Speculation
    models: Models
    state: DecodeState
    mesh: AnyMesh

    @classmethod
    def place(cls, program: Program, batch: int, rows: int, mesh: AnyMesh) -> "PlacedProgram":
        """A program for `batch` sequences in caches of `rows` rows, on these chips."""
        models, state = program.layout(batch, rows, mesh)
        return cls(program.spec, models, state, mesh)

    @property
    def arguments(self) -> tuple[Models, DecodeState, jax.ShapeDtypeStruct]:
        """With the number of rounds, as `loop.decode` takes them."""
        rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding(self.mesh, (), ()))
        return self.models, self.state, rounds

    def trace(self) -> Any:
        """The traced loop, for the devices of the mesh."""
        with _current(self.mesh):
            return LOOP.trace(self.spec, *_for(self.mesh, self.arguments))

    def trace_prefill(self, chunk: int) -> Any:
        """Prefill traced, so many tokens of each prompt at a time."""
        with _current(self.mesh):
            models, state = _for(self.mesh, (self.models, self.state))
            return trace_prefill(self.spec.drafter, models, state, chunk)

    def prefill_work(self, prompt: int) -> Work:
        """What the target must do on each chip to read prompts of so many tokens: products, and weights read once.

        Each token attends to those before it and itself; the LM head reads the last one alone.
        """
        target, batch = self.models.target, self.state.tokens.shape[0] // self.mesh.shape["data"]
        config = target.config
        held = placement.device_elements(target.layers)
        asked = config.experts_per_token / config.num_experts if config.num_experts else 1
        experts = placement.device_elements([layer.mlp for layer in target.layers]) if config.num_experts else 0
        heads = config.num_heads / (self.mesh.shape["kv"] * self.mesh.shape["group"])
        attending = 4 * config.num_layers * heads * config.head_dim * prompt * (prompt + 1) / 2
        flops = batch * (2 * prompt * (held - experts * (1 - asked)) + attending)
        kv = placement.device_bytes(self.state.cache) * prompt / self.state.tokens.shape[1]
        return Work(flops, placement.device_bytes(target.layers) + kv)

    def count(self, traced: Any) -> Parts:
        """What the parts of a round do on each chip, by their shapes."""
        return counting.count(traced, self.arguments, self.mesh)

    def count_drafting(self) -> Parts:
        """The same of drafting alone, which is traced sooner; what is not a level counts as committing."""

        def drafting(models: Models, state: DecodeState, rounds: Any) -> Any:
            return draft(self.spec, models, state, state.keys)

        with _current(self.mesh):
            return self.count(jax.jit(drafting).trace(*_for(self.mesh, self.arguments)))


def chain_on_one_chip(method: Method, models: Models) -> Parts:
    """What a round of two levels does for one sequence where one chip holds everything, whatever the builder."""
    chain = dataclasses.replace(method, builder=Chain(length=2), controller=Fixed(), history=0)
    placed = PlacedProgram.place(program_of(chain, models, greedy=True), 1, SMALLEST_CACHE, one_chip())
    return placed.count(placed.trace())


def one_chip() -> AbstractMesh:
    """The mesh of a single chip, whichever JAX computes on."""
    return _abstract((1,) * len(AXES))


def mesh_on(where: Slice, config: LlamaConfig, data: int, model: int) -> AnyMesh:
    """The mesh of a model on these chips: in the abstract where GPUs are meant and nothing that compiles is installed.

    Raises:
        NoCompilerError: for TPUs, where libtpu is not installed.
        ValueError: there is no such grid of TPUs.
    """
    if where.is_tpu or can_compile():
        devices = tpus(where) if where.is_tpu else gpus(where)
        return split(make_mesh(data=data, model=model, devices=devices), config)
    return _abstract((data, *parts(model, config)))


def tpus(where: Slice) -> Sequence[Any]:
    """The chips of a slice, as devices that nothing but the compiler can use. Raises as `mesh_on`."""
    if importlib.util.find_spec("libtpu") is None:
        raise NoCompilerError(
            "planning needs the TPU compiler (but no TPU), which is not installed: pip install 'jax-specdec[tpu]'"
        )
    from jax.experimental import topologies

    expect_no_chip()
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # it locks out other processes, for chips that no one uses
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=str(where)).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"{where} is not a TPU slice: {' '.join(str(error).split())}") from error


def _abstract(sizes: tuple[int, ...]) -> AbstractMesh:
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _current(mesh: AnyMesh) -> contextlib.AbstractContextManager:
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else contextlib.nullcontext()


def _for(mesh: AnyMesh, arguments: Any) -> Any:
    """The arguments for tracing: without places, where there are no devices for them."""
    if isinstance(mesh, Mesh):
        return arguments
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
