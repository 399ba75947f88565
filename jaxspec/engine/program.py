"""The compiled loop of a method with its models. The engine runs it, and `plan` compiles it for absent chips."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding import loop
from jaxspec.decoding.batch import data_parts, padded, place_state, start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.prefill import Step, read, steps
from jaxspec.decoding.prefill_buckets import shapes, shapes_ahead
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.model.backend import current_mesh

Jobs = dict[tuple[Any, ...], Callable[[], Any]]
"""Functions that compile programs, by keys that begin with the program's name and have the same `repr` in all processes
on this machine."""

LOOP_NAME = "loop"
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

    def read(self, state: DecodeState, chunk: int, begin: int, end: int) -> DecodeState:
        """Reads the prompts from `begin` to `end`, in chunks, and commits the first token of each if all are read."""
        return read(self.spec.drafter, self.models, state, chunk, begin, end)

    def compilations(
        self, model: Checkpoint, requests: Sequence[Request], later: Sequence[Request] = (), least: int = 0
    ) -> Jobs:
        """Functions that compile the programs which these requests need, on the model's mesh: first those of prefill.

        If the cache must grow later, the loop is compiled again. The arguments are those of `shapes`.
        """
        both, eos = [*requests, *later], model.config.eos
        with model.context():
            chunk, cache_len = shapes(self.spec, requests, later, least)
            batch = self._abstract(padded(requests), eos, cache_len, both)
            loop = self._key(LOOP_NAME, self.spec, batch)
            jobs: Jobs = {
                **self._prefill_jobs(batch, chunk),
                loop: lambda: LOOP.lower(self.spec, self.models, batch, np.int32(0), np.int32(0)).compile(),
            }
            if later:
                chunks, cache_len = shapes_ahead(self.spec, both, len(requests))
                group = self._abstract([later[0]] * data_parts(), eos, cache_len, both)
                for chunk in chunks:
                    jobs |= self._prefill_jobs(group, chunk)
        # As a decorator, the context is entered anew in the thread that runs the job.
        return {key: model.context()(job) for key, job in jobs.items()}

    def ready_key(self, requests: Sequence[Request], later: Sequence[Request] = (), least: int = 0) -> tuple[Any, ...]:
        """A key for `compilation.ready` of all programs of `compilations`, faster to compute than theirs."""
        both = [*requests, *later]
        ahead = shapes_ahead(self.spec, both, len(requests)) if later else None
        truncated = (any(r.sampling.top_k for r in both), any(r.sampling.top_p < 1 for r in both))
        weights = (id(self.models.target), id(self.models.draft), id(self.models.control))
        return (self.spec, weights, len(requests), shapes(self.spec, requests, later, least), ahead, truncated)

    def _prefill_jobs(self, state: DecodeState, chunk: int) -> Jobs:
        """Functions that compile the programs of prefill. Only the last one has the drafter's weights."""

        def compile_step(step: Step) -> Any:
            return step.program.lower(*step.arguments, **step.settings).compile()

        jobs: Jobs = {}
        for step in steps(self.spec.drafter, self.models, state, chunk):
            settings = (*step.settings.values(), chunk)
            key = self._key(f"prefill ({step.name})", settings, state, "drafter" in step.settings)
            jobs[key] = partial(compile_step, step)
        return jobs

    def _abstract(
        self, requests: Sequence[Request], eos: Sequence[int], cache_len: int, among: Sequence[Request]
    ) -> DecodeState:
        """The state before prefill as `jax.ShapeDtypeStruct`s, sharded as the real one, or JAX would compile again."""
        begin = lambda models: start(self.spec, models, requests, eos, cache_len, among)
        state, mesh = jax.eval_shape(begin, self.models), current_mesh()
        if mesh is not None:
            return place_state(state, mesh)
        return jax.tree.map(lambda leaf: leaf.update(sharding=self.device), state)

    def _key(self, name: str, settings: Any, state: DecodeState, of_drafter: bool = True) -> tuple[Any, ...]:
        """The key of a program: its name, settings, and the shapes of its arrays. Methods can share a program."""
        models = self.models if of_drafter else self.models.target
        arrays = (models, state if of_drafter else (state.tokens, state.cache))
        leaves = str([(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays)])
        mesh = str(jax.sharding.get_abstract_mesh().shape)
        return (name, settings, hashlib.sha256(leaves.encode()).hexdigest(), mesh)

    def decode(self, state: DecodeState, rounds: int, enough: int) -> DecodeState:
        """Runs up to `rounds` rounds. It stops earlier if `enough` rows are finished or the cache is too small."""
        return LOOP(self.spec, self.models, state, np.int32(rounds), np.int32(enough))
