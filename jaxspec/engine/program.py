"""The compiled loop of a method with its models. The engine runs it, and `plan` compiles it for absent chips."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.decoding import loop
from jaxspec.decoding.batch import IDLE, data_parts, padded, place_state, start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.prefill import Step, on_device, prefill, read, steps
from jaxspec.decoding.prefill_buckets import cache_len_for_all, shapes, shapes_ahead
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.methods.method import Method
from jaxspec.model.sharding import AnyMesh, place, place_head

LOOP: Any = loop.decode  # Any, because the type of a jitted function lacks `trace` and `lower`


@dataclasses.dataclass(frozen=True)
class Program:
    """A loop and its models, real or abstract."""

    spec: Speculation
    models: Models

    def start(
        self,
        requests: Sequence[Request],
        eos: Sequence[int],
        cache_len: int,
        among: Sequence[Request] | None = None,
    ) -> DecodeState:
        """The state before prefill, on the current mesh; the arguments are those of `decoding.batch.start`."""
        # The programs' outputs have the device's sharding; another one here would compile the loop twice.
        alone = self.device if jax.sharding.get_abstract_mesh().empty else None
        return start(self.spec, self.models, requests, eos, cache_len, among, alone)

    @property
    def device(self) -> Any:
        """The sharding of arrays on the target's device, if there is only one device."""
        return self.models.target.norm.scale[...].sharding

    def prefill(self, state: DecodeState, chunk: int) -> DecodeState:
        """Reads the prompts, and commits the first token of each."""
        return prefill(self.spec.drafter, self.models, state, chunk)

    def read(self, state: DecodeState, chunk: int, begin: int, end: int) -> DecodeState:
        """Reads the prompts from `begin` to `end`, in chunks."""
        return read(self.spec.drafter, self.models, state, chunk, begin, end)

    def compilations(
        self, requests: Sequence[Request], eos: Sequence[int], later: Sequence[Request] = ()
    ) -> dict[tuple[Any, ...], Callable[[], None]]:
        """Functions that compile the first programs which these requests need, on the current mesh.

        A key begins with the program's name. Methods that share a program have the same key.

        Args:
            later: requests that will refill rows of the first ones.
        """
        everybody = [*requests, *later]
        chunk, cache_len = shapes(self.spec, requests)
        if later:
            cache_len = cache_len_for_all(self.spec, requests, later)

        def abstract(begin: Callable[[Models], DecodeState]) -> DecodeState:
            state, mesh = jax.eval_shape(begin, self.models), jax.sharding.get_mesh()
            return on_device(state, self.device) if mesh.empty else place_state(state, mesh)

        def reading(state: DecodeState, chunk: int) -> dict[tuple[Any, ...], Callable[[], None]]:
            each = steps(self.spec.drafter, self.models, state, chunk)
            lower = lambda step: step.program.lower(*step.arguments, **step.settings)
            return {self._key(step, state, chunk): lambda step=step: lower(step).compile() for step in each}

        state = abstract(lambda models: start(self.spec, models, padded(requests), eos, cache_len, everybody))
        loop = lambda: LOOP.lower(self.spec, self.models, state, np.int32(0), np.int32(0)).compile()
        found = {**reading(state, chunk), ("loop", self.spec, id(self.models.draft), state.tokens.shape): loop}
        if later:
            chunks, cache_len = shapes_ahead(self.spec, everybody, len(requests))
            rows = [later[0]] * data_parts()
            one = abstract(lambda models: start(self.spec, models, rows, eos, cache_len, everybody))
            for each in chunks:
                found |= reading(one, each)
        return found

    def _key(self, step: Step, state: DecodeState, chunk: int) -> tuple[Any, ...]:
        """The key of a program of prefill. Only the last one depends on the drafter."""
        head = id(self.models.draft) if "drafter" in step.settings else None
        return ("prefill", step.name, id(self.models.target), head, *step.settings.values(), state.tokens.shape, chunk)

    def decode(self, state: DecodeState, rounds: int, enough: int) -> DecodeState:
        """Runs up to `rounds` rounds. It stops earlier if `enough` rows are finished or the cache is too small."""
        return LOOP(self.spec, self.models, state, np.int32(rounds), np.int32(enough))

    def layout(self, batch: int, cache_len: int, mesh: AnyMesh) -> tuple[Models, DecodeState]:
        """Models and state for `batch` sequences, as `jax.ShapeDtypeStruct`s sharded over a split mesh."""
        begin = lambda models: start(self.spec, models, [IDLE] * batch, (), cache_len)
        state = jax.eval_shape(begin, self.models)
        placed = Models(
            target=place(self.models.target, mesh),
            draft=place_head(self.models.draft, mesh),
            control=place_head(self.models.control, mesh),
        )
        return placed, place_state(state, mesh)


def program_of(method: Method, models: Models, *, greedy: bool, **options: Any) -> Program:
    """The program of a method over these models; `options` are the remaining fields of `Speculation`."""
    return Program(method.speculation(greedy, **options), models)
