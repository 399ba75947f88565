"""The decode loop for chips that need not be there: abstract arguments in their places, traced and compiled."""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxspec.decoding import decode_state, layout, loop, speculation
from jaxspec.decoding.drafter import Models, Prefix
from jaxspec.decoding.sampling import Sampling
from jaxspec.model import placement
from jaxspec.model.config import LlamaConfig
from jaxspec.model.mesh import AXES, AnyMesh, make_mesh, parts, split
from jaxspec.model.mesh_rules import sharding as at
from jaxspec.planning import counting
from jaxspec.planning.chips import Slice
from jaxspec.planning.work import Parts

LOOP: Any = loop.decode  # a jitted function has methods that its type does not show


class NoCompilerError(Exception):
    """What compiles for TPUs is not installed."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A loop and what it is called with, apart from what is static: `jax.ShapeDtypeStruct`s with shardings."""

    spec: speculation.Speculation
    models: Models
    state: decode_state.DecodeState
    mesh: AnyMesh

    @property
    def arguments(self) -> tuple[Models, decode_state.DecodeState, jax.ShapeDtypeStruct]:
        """With the number of rounds, as `decode.decode` takes them."""
        rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=at(self.mesh, (), ()))
        return self.models, self.state, rounds

    def trace(self) -> Any:
        """The traced loop, for the devices of the mesh."""
        with _current(self.mesh):
            return LOOP.trace(self.spec, *_for(self.mesh, self.arguments))

    def count(self, traced: Any) -> Parts:
        """What the parts of a round do on each chip, by their shapes."""
        return counting.count(traced, self.arguments, self.mesh)

    def count_drafting(self) -> Parts:
        """The same of drafting alone, which is traced sooner; what is not a level counts as committing."""

        def draft(models: Models, state: decode_state.DecodeState, rounds: Any) -> Any:
            prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
            return loop.draft(self.spec, models, state, prefix, state.keys, state.keys)

        with _current(self.mesh):
            return self.count(jax.jit(draft).trace(*_for(self.mesh, self.arguments)))


def place(spec: speculation.Speculation, models: Models, batch: int, rows: int, mesh: AnyMesh) -> Program:
    """The loop of a method over abstract models, for `batch` sequences in caches of `rows` rows."""
    state = jax.eval_shape(lambda models: _begin(spec, models, batch, rows), models)
    placed = Models(
        target=placement.place(models.target, mesh),
        draft=placement.place_head(models.draft, mesh),
        control=placement.place_head(models.control, mesh),
    )
    return Program(spec, placed, layout.place_state(state, mesh), mesh)


def mesh_on(where: Slice, config: LlamaConfig, data: int, model: int) -> AnyMesh:
    """The mesh of a model on these chips: of TPUs that can be compiled for, of GPUs in the abstract.

    Raises:
        NoCompilerError: for TPUs, where libtpu is not installed.
        ValueError: there is no such grid of TPUs.
    """
    if where.is_tpu:
        return split(make_mesh(data=data, model=model, devices=tpus(where)), config)
    sizes = (data, *parts(model, config))
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def tpus(where: Slice) -> Sequence[Any]:
    """The chips of a slice, as devices that nothing but the compiler can use. Raises as `mesh_on`."""
    if importlib.util.find_spec("libtpu") is None:
        raise NoCompilerError(
            "planning for a TPU needs its compiler, and no TPU; it is not installed: pip install 'jaxspec[tpu]'"
        )
    from jax.experimental import topologies

    if not any(Path("/dev").glob("accel*")):
        # Without these libtpu searches the network for a TPU machine's description, and complains that there is none.
        defaults = {"TPU_ACCELERATOR_TYPE": "v5litepod-16", "TPU_WORKER_HOSTNAMES": "localhost"}
        for name, value in {**defaults, "TPU_SKIP_MDS_QUERY": "1"}.items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # it locks out other processes, for chips that no one uses
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=str(where)).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"there is no TPU slice {where}: {' '.join(str(error).split())}") from error


def _begin(spec: speculation.Speculation, models: Models, batch: int, rows: int) -> decode_state.DecodeState:
    """A state to take shapes from."""
    count = jnp.ones(batch, jnp.int32)
    return decode_state.new_state(
        spec,
        models,
        tokens=jnp.zeros((batch, rows), jnp.int32),
        length=count,
        limit=count,
        done=count > 1,
        keys=jax.random.split(jax.random.key(0), batch),
        eos=jnp.zeros(4, jnp.int32),
        sampling=Sampling(temperature=jnp.zeros(batch), top_k=None, top_p=None),
    )


def _current(mesh: AnyMesh) -> contextlib.AbstractContextManager:
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else contextlib.nullcontext()


def _for(mesh: AnyMesh, arguments: Any) -> Any:
    """The arguments for tracing: without places, where there are no devices for them."""
    if isinstance(mesh, Mesh):
        return arguments
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
