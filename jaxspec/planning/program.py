"""A program for chips that may be absent: its mesh, and the loop traced and counted on abstract arguments."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.builders import Chain
from jaxspec.controllers import Fixed
from jaxspec.decoding.batch import IDLE, padded, place_state, start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import draft
from jaxspec.decoding.prefill import steps
from jaxspec.decoding.prefill_buckets import SMALLEST_CACHE
from jaxspec.decoding.speculation import Speculation
from jaxspec.engine.program import LOOP, Program
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.model import backend
from jaxspec.model.sharding import AnyMesh, device_bytes, device_elements, named_sharding, place, place_head
from jaxspec.planning.chips import Collective, Slice, Work, merged
from jaxspec.planning.counting import Parts, Phase, count
from jaxspec.planning.devices import abstract_mesh
from jaxspec.planning.estimate import Interval, Operation, interval, of_phase, operations
from jaxspec.planning.hlo import CompiledProgram


def _platform_of(mesh: AnyMesh) -> contextlib.AbstractContextManager:
    """A context for tracing programs for this mesh: its platform, or none if it has no devices."""
    return backend.use_mesh(mesh) if isinstance(mesh, Mesh) else backend.no_device()


@dataclasses.dataclass(frozen=True)
class PlacedProgram:
    """A decoding loop and its arguments: `jax.ShapeDtypeStruct`s with shardings."""

    spec: Speculation
    models: Models
    state: DecodeState
    mesh: AnyMesh

    @classmethod
    def place(cls, program: Program, batch: int, rows: int, mesh: AnyMesh) -> "PlacedProgram":
        """A program for `batch` sequences, padded as when they run, with caches of `rows` rows on a split mesh."""
        begin = lambda models: start(program.spec, models, padded([IDLE] * batch, mesh.shape["data"]), (), rows)
        with _platform_of(mesh):
            state = jax.eval_shape(begin, program.models)
            models = Models(
                target=place(program.models.target, mesh),
                draft=place_head(program.models.draft, mesh),
                control=place_head(program.models.control, mesh),
            )
            return cls(program.spec, models, place_state(state, mesh), mesh)

    @property
    def arguments(self) -> tuple[Models, DecodeState, jax.ShapeDtypeStruct]:
        """The arguments of `loop.decode`: models, state, and the number of rounds."""
        rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=named_sharding(self.mesh, (), ()))
        return self.models, self.state, rounds

    @functools.cached_property
    def traced(self) -> Any:
        """The loop, traced for the devices of the mesh."""
        return self._trace(functools.partial(LOOP.trace, self.spec), *self.arguments)

    def trace_prefill(self, chunk: int) -> Iterator[tuple[Any, int]]:
        """Traces the programs that read `chunk` tokens of each prompt, and yields each with its calls for a chunk."""
        for step in steps(self.spec.drafter, self.models, self.state, chunk):
            yield self._trace(functools.partial(step.program.trace, **step.settings), *step.arguments), step.times

    def _trace(self, trace: Callable[..., Any], *arguments: Any) -> Any:
        if not isinstance(self.mesh, Mesh):  # an abstract mesh has no devices, so arguments have no shardings
            arguments = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
        with _platform_of(self.mesh):
            return trace(*arguments)

    def prefill_work(self, prompt: int) -> Work:
        """Minimum work of the target on each chip for prompts of `prompt` tokens: products, and weights read once.

        The LM head, which only the last token needs, is not counted.
        """
        target, batch = self.models.target, self.state.tokens.shape[0] // self.mesh.shape["data"]
        config = target.config
        held = device_elements(target.layers)
        used = config.experts_per_token / config.num_experts if config.num_experts else 1
        experts = device_elements([layer.mlp for layer in target.layers]) if config.num_experts else 0
        heads = config.num_heads / (self.mesh.shape["kv"] * self.mesh.shape["group"] * self.mesh.shape["rows"])
        attending = 4 * config.num_layers * heads * config.head_dim * prompt * (prompt + 1) / 2
        flops = batch * (2 * prompt * (held - experts * (1 - used)) + attending)
        kv = device_bytes(self.state.cache) * prompt / self.state.tokens.shape[1]
        return Work(flops, device_bytes(target.layers) + kv)

    @functools.cached_property
    def parts(self) -> Parts:
        """Work of the parts of a round on each chip, counted from shapes."""
        return count(self.traced, self.arguments, self.mesh)

    def count_drafting(self) -> Parts:
        """Like `parts`, for drafting alone, which is faster to trace. Work outside a level counts as committing."""
        drafting = jax.jit(lambda models, state, rounds: draft(self.spec, models, state, state.keys))
        return count(self._trace(drafting.trace, *self.arguments), self.arguments, self.mesh)


def chain_on_one_chip(method: Method, models: Models) -> Parts:
    """Work of a round that drafts a chain of two levels, for one sequence on one chip. The builder is ignored."""
    chain = dataclasses.replace(method, builder=Chain(length=2), controller=Fixed(), history=0)
    return PlacedProgram.place(Program(chain.speculation(True), models), 1, SMALLEST_CACHE, abstract_mesh()).parts


LARGE = 2**20  # fewest bytes of an array that is reported


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program; `operations` are of a round if it is a loop, `memory` is JAX's `memory_analysis()`."""

    program: CompiledProgram
    operations: Sequence[Operation]
    memory: Any
    where: Slice

    @classmethod
    def of(
        cls, traced: Any, where: Slice, filled: float = 1.0, options: Mapping[str, str] | None = None
    ) -> "Compiled | None":
        """Compiles a traced program with these options; None if it does not fit in memory. `filled`: `operations`."""
        try:
            compiled = traced.lower().compile(compiler_options=options and dict(options))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            say(f"the compiler: {' '.join(str(error).split())[:300]}")
            return None
        program = CompiledProgram.parse(compiled.as_text())
        return cls(program, operations(program, where, filled), compiled.memory_analysis(), where)

    @property
    def temporaries(self) -> int:
        """Bytes on a chip of temporaries, code, and outputs that reuse no argument's buffer."""
        stats = self.memory
        unaliased = stats.output_size_in_bytes - stats.alias_size_in_bytes
        return stats.temp_size_in_bytes + stats.generated_code_size_in_bytes + unaliased

    @property
    def messages(self) -> Mapping[Phase, tuple[Collective, ...]]:
        """The messages of each phase; equal ones are counted together."""
        sent = [(each.phase, each.message) for each in self.operations if each.message]
        phases = dict.fromkeys(phase for phase, _ in sent)
        return {phase: merged(each for at, each in sent if at == phase) for phase in phases}

    @property
    def in_fast_memory(self) -> list[str]:
        """Large arrays that stay in fast memory for the whole loop. A large model's weights do not fit there."""
        carried = self.program.main_loop.results if self.program.main_loop else ()
        return [str(each) for each in carried if each.fast and each.bytes >= LARGE]

    def seconds(self, runs: Mapping[Phase, int | float]) -> Interval:
        """Estimated seconds of phases, each repeated `runs[phase]` times."""
        parts = [interval(of_phase(self.operations, phase), self.where.chip).times(n) for phase, n in runs.items()]
        return Interval(*map(sum, zip(*parts, strict=True)))

    def during(self, runs: Mapping[Phase, int | float]) -> list[Operation]:
        """Operations of the phases that run at least once."""
        return of_phase(self.operations, *(phase for phase, number in runs.items() if number))
