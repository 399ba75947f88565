"""The loop of a method with its models: what the engine runs, and what `plan` compiles for chips that are not there."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.decoding import loop
from jaxspec.decoding.batch import IDLE, start, start_rows
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.layout import place_state
from jaxspec.decoding.prefill import compile_prefill, on_device, prefill
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.methods.method import Method
from jaxspec.model.mesh import AnyMesh
from jaxspec.model.placement import place, place_head

LOOP: Any = loop.decode  # a jitted function has methods that its type does not show


@dataclasses.dataclass(frozen=True)
class Program:
    """A loop and the models that it runs on, of arrays or abstract."""

    spec: Speculation
    models: Models

    def start(self, requests: Sequence[Request], eos: Sequence[int], rows: int) -> DecodeState:
        """The state before prefill, on the current mesh."""
        state = start(self.spec, self.models, requests, eos, rows)
        # Where the programs leave it, or the loop would be compiled for what came from prefill and for what did not.
        return jax.device_put(state, self.device) if jax.sharding.get_abstract_mesh().empty else state

    @property
    def device(self) -> Any:
        """The sharding of what is on one device with the target."""
        return self.models.target.norm[...].sharding

    def prefill(self, state: DecodeState, chunk: int) -> DecodeState:
        """Reads the prompts, and commits the first token of each."""
        return prefill(self.spec.drafter, self.models, state, chunk)

    def compilations(
        self, requests: Sequence[Request], eos: Sequence[int]
    ) -> dict[tuple[Any, ...], Callable[[], None]]:
        """What compiles each program that decoding these requests begins with, on one device.

        Under a key that begins with the program's name and is the same for methods that share it.
        """
        chunk, rows = shapes(self.spec, requests)
        begun = jax.eval_shape(lambda models: start(self.spec, models, requests, eos, rows), self.models)
        state = on_device(begun, self.device)
        size, weights = state.tokens.shape, id(self.models.draft)
        drafter = self.spec.drafter
        return {
            ("prefill", drafter, weights, size, chunk): partial(compile_prefill, drafter, self.models, state, chunk),
            ("loop", self.spec, weights, size): lambda: LOOP.lower(
                self.spec, self.models, state, jnp.int32(0)
            ).compile(),
        }

    def decode(self, state: DecodeState, rounds: Any) -> DecodeState:
        """Runs up to `rounds` rounds."""
        return LOOP(self.spec, self.models, state, rounds)

    def layout(self, batch: int, rows: int, mesh: AnyMesh) -> tuple[Models, DecodeState]:
        """Models and state for `batch` sequences as `jax.ShapeDtypeStruct`s, each in its place on a split mesh."""
        begin = lambda models: start_rows(self.spec, models, [IDLE] * batch, (), rows, batch)
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
