"""A batch of requests on the device, decoded in several calls of the loop. Free rows can take further requests."""

import dataclasses
import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.batch import insert, padded, restore_controller
from jaxspec.decoding.decode_state import DecodeState, enlarge, margin
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.engine.prefix_cache import PromptMemory
from jaxspec.engine.program import LOOP_NAME, Jobs, Program
from jaxspec.host import compilation
from jaxspec.host.compilation import Compilations
from jaxspec.host.processes import fetch, put

UNLIMITED = 2**30


@dataclasses.dataclass(frozen=True)
class Text:
    """The current text of a row.

    Attributes:
        place: index of the request in the call.
        first_round: number of rounds that the batch had run before.
        prefill_seconds: time of its prefill, shared with prompts that were prefilled together.
        decoded_before: seconds that the batch had been decoding before.
    """

    place: int
    request: Request
    first_round: int
    prefill_seconds: float
    decoded_before: float


class Session:
    """A batch on the device. The constructor prefills the prompts; `advance` decodes. The cache grows with the texts.

    Attributes:
        state: the state after the last call; its arrays are donated to the next call.
        texts: by row, the texts that are being decoded, or whose results were not returned yet.
        requests: all requests of the call; the first have rows, the others wait for one.
        length, done: [B], the state's arrays on the host.
        round: number of rounds so far.
        prefill_seconds, decode_seconds: times so far.
    """

    def __init__(
        self,
        model: Checkpoint,
        program: Program,
        requests: Sequence[Request],
        learnt: Sequence[Any] | None = None,
        later: Sequence[Request] = (),
        memory: PromptMemory | None = None,
    ):
        """Prefills the prompts.

        Args:
            learnt: the initial state of each row's controller, a `Generation.controller` or None; None: all start anew.
            later: requests that take the rows of finished texts; the first cache has room for each of them.
            memory: for a single request, the stored prefix of the last prompt; it is updated with this prompt.
        """
        compilation.make_room_for_more()
        self.model, self.program, self.requests = model, program, [*requests, *later]
        with model.context():
            least = 0 if memory is None else memory.cache_len
            chunk, self.cache_len = shapes(program.spec, requests, later, least)
            self._key, self._compiling = program.ready_key(requests, later, least), None
            jobs = Jobs() if self._key in compilation.ready else program.compilations(model, requests, later, least)
            if jobs:
                self._compiling = Compilations(jobs, itemgetter(0), repr)
            try:
                state = program.start(padded(requests), model.config.eos, self.cache_len, self.requests)
                if learnt is not None:
                    state = dataclasses.replace(state, controller=restore_controller(state.controller, learnt))
                jax.block_until_ready(state.length)
                if self._compiling is not None:
                    self._compiling.wait(list(itertools.takewhile(lambda key: key[0] != LOOP_NAME, jobs)))
                began = time.perf_counter()
                self.state: DecodeState = (
                    program.read(state, chunk, 0, max(len(request.tokens) for request in requests))
                    if memory is None
                    else memory.prefill(program, state, requests[0].tokens, chunk)
                )
                jax.block_until_ready(self.state.length)
            except BaseException:
                if self._compiling is not None:
                    self._compiling.cancel()
                raise
        self.prefill_seconds, self.decode_seconds = time.perf_counter() - began, 0.0
        self.texts = {row: Text(row, request, 0, self.prefill_seconds, 0.0) for row, request in enumerate(requests)}
        self._read_back()

    @property
    def finished(self) -> bool:
        """Whether every row is finished."""
        return bool(self.done.all())

    def finish_compiling(self, *, silent: bool = False) -> None:
        """Waits for the compilations that the constructor began. If `silent`, no progress is shown."""
        if self._compiling is not None:
            self._compiling.wait(show=not silent)
            self._compiling = None
            compilation.ready.add(self._key)

    def announce(self) -> None:
        """See `Compilations.announce`."""
        if self._compiling is not None:
            self._compiling.announce()

    def advance(self, rounds: int = UNLIMITED, more: int | None = None) -> None:
        """Decodes `rounds` rounds; fewer if the cache must grow, or `more` further rows (None: all) are finished."""
        self.finish_compiling()
        enough = self.done.size if more is None else min(int(self.done.sum()) + more, self.done.size)
        with self.model.context():
            if np.where(self.done, 0, self.length).max() + margin(self.program.spec) > self.cache_len:
                self.cache_len *= 2
                self.state = enlarge(self.program.spec.drafter, self.program.models, self.state, self.cache_len)
            began = time.perf_counter()
            self.state = self.program.decode(self.state, rounds, enough)
            self._read_back()
            self.decode_seconds += time.perf_counter() - began

    def stop(self, rows: Collection[int]) -> None:
        """Marks these rows as finished."""
        if rows:
            self.done = self.done | np.isin(np.arange(len(self.done)), list(rows))
            self.state = dataclasses.replace(self.state, done=put(self.done, self.state.done.sharding))

    def insert(self, fresh: DecodeState, texts: Mapping[int, Text], part_of: Mapping[int, int]) -> None:
        """Writes prefilled prompts into free rows, each with its new text.

        `part_of` is the part of the batch of each row, which is also its row in `fresh`; see `decoding.batch.insert`.
        """
        parts = fresh.length.shape[0]
        row, chosen = np.zeros(parts, np.int32), np.zeros(parts, bool)
        for at, part in part_of.items():
            row[part], chosen[part] = at % (self.done.size // parts), True
        with self.model.context():
            self.state = insert(self.state, fresh, row, chosen)
        self.texts |= texts
        self._read_back()

    def _read_back(self) -> None:
        """Copies lengths and flags of the state to the host. Raises FloatingPointError if logits are not finite."""
        state = self.state
        length, done, rounds, finite = fetch((state.length, state.done, state.round, state.finite))
        self.length, self.done, self.round = np.asarray(length), np.asarray(done), int(rounds)
        if broken := [text.place for row, text in self.texts.items() if not finite[row]]:
            raise not_finite(f"prompt {min(broken)}", self.model.target.dtype)


def not_finite(what: str, dtype: Any) -> FloatingPointError:
    """The error for a text whose logits are not all finite."""
    return FloatingPointError(
        f"the model's logits for {what} are not finite in {dtype}: an activation overflowed, or a weight is NaN; use "
        "another dtype"
    )
