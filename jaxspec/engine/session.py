"""One batch of requests being decoded, in calls of the loop."""

import dataclasses
import time
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.batch import restore_controller
from jaxspec.decoding.decode_state import DecodeState, enlarge, margin
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.engine.program import Program
from jaxspec.host.processes import fetch, put_like

UNLIMITED = 2**30


class Session:
    """A batch on the device: its prompts are read when it is made, and `advance` decodes on.

    The cache grows as it fills.

    Attributes:
        state: after the last call; its arrays are donated to the next.
        length, done: [B] of it, on the host.
        prefill_seconds, decode_seconds: spent so far.
    """

    def __init__(
        self, model: Checkpoint, program: Program, requests: Sequence[Request], learnt: Sequence[Any] | None = None
    ):
        """Reads the prompts.

        Args:
            learnt: what each row's controller starts from, a `Generation.controller` or None; None: all from nothing.
        """
        self.model, self.program = model, program
        chunk, self.rows = shapes(program.spec, requests)
        with model.context():
            state = program.start(requests, model.config.eos, self.rows)
            if learnt is not None:
                state = dataclasses.replace(state, controller=restore_controller(state.controller, learnt))
            jax.block_until_ready(state.length)
            began = time.perf_counter()
            self.state: DecodeState = program.prefill(state, chunk)
            jax.block_until_ready(self.state.length)
        self.prefill_seconds, self.decode_seconds = time.perf_counter() - began, 0.0
        self.length, self.done = map(np.asarray, fetch((self.state.length, self.state.done)))

    @property
    def finished(self) -> bool:
        """Whether every row is done."""
        return bool(self.done.all())

    def advance(self, rounds: int = UNLIMITED) -> None:
        """Decodes up to `rounds` rounds; fewer where all rows are done or the cache has to grow first."""
        with self.model.context():
            if np.where(self.done, 0, self.length).max() + margin(self.program.spec) > self.rows:
                self.rows *= 2
                self.state = enlarge(self.program.spec.drafter, self.state, self.rows)
            began = time.perf_counter()
            self.state = self.program.decode(self.state, jnp.int32(rounds))
            self.length, self.done = map(np.asarray, fetch((self.state.length, self.state.done)))
            self.decode_seconds += time.perf_counter() - began

    def stop(self, rows: Collection[int]) -> None:
        """Decodes these rows no further."""
        if rows:
            self.done = self.done | np.isin(np.arange(len(self.done)), list(rows))
            self.state = dataclasses.replace(self.state, done=put_like(self.done, self.state.done))
