"""Continuous batching: prompts are prefilled during decoding, and take the rows of finished texts."""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from jaxspec.decoding.batch import data_parts
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.prefill_buckets import shapes_ahead, whole_chunks
from jaxspec.decoding.request import Request
from jaxspec.engine.generation import Generation, text_of_row
from jaxspec.engine.prefix_cache import CachedPrefix, go_on, kept, worth_keeping
from jaxspec.engine.session import UNLIMITED, Session, Text
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.processes import fetch


@dataclasses.dataclass(eq=False)  # hashable by identity
class Group:
    """Prompts that are prefilled together: at most one for each part of the batch on the mesh's axis `data`.

    Attributes:
        requests: by part, (index of the prompt in the call, request).
        state: the state of these prompts, one row for each part.
        position: tokens read so far, rounded up to whole chunks for shorter prompts.
        keep: positions at which the prefix is stored for later prompts.
        seconds: time of prefill so far.
    """

    requests: dict[int, tuple[int, Request]]
    state: DecodeState
    position: int = 0
    keep: Sequence[int] = ()
    seconds: float = 0.0

    @property
    def left(self) -> int:
        """Tokens of the longest prompt that are not read yet."""
        return max(len(request.tokens) for _, request in self.requests.values()) - self.position


class PrefillQueue:
    """The prompts that wait for a row of a session. For each part of the batch at most one is prefilled ahead.

    So a free row is filled again without an idle round, and other rows wait for at most one chunk at a time. A shared
    beginning of prompts is read once.

    Without a mesh a chunk is read in a thread of its own while the loop runs. A CPU then computes both at once; other
    devices compute one after the other. On a mesh all processes must start their programs in the same order, so there
    the chunk is read first.

    Attributes:
        waiting: (index of the prompt, request) of prompts that are not read yet.
        group: the group that is being read.
        ready: by part, the group with its next prompt.
        kept: stored prefixes of waiting prompts, the shortest first.
    """

    def __init__(self, session: Session, keep_state: bool = False):
        """Sets up the queue. Nothing is read yet.

        Args:
            session: a new one, in which the first of its requests have rows.
            keep_state: a row's controller keeps its state from the row's last text.
        """
        self.session, self.keep_state, self.slots = session, keep_state, len(session.texts)
        self.waiting = deque(list(enumerate(session.requests))[self.slots :])
        self.group: Group | None = None
        self.ready: dict[int, Group] = {}
        self.kept: list[CachedPrefix] = []
        self._thread = ThreadPoolExecutor(1, "prefill") if session.model.mesh is None else None
        with session.model.context():
            self.parts = data_parts()
            self.served = -(-self.slots // (session.done.size // self.parts))  # parts with a row that takes prompts
            self.chunks, self.cache_len = shapes_ahead(session.program.spec, session.requests, self.slots)

    @property
    def pending(self) -> bool:
        """Whether any prompt still waits for a row."""
        return bool(self.waiting or self.group or self.ready)

    @property
    def chunks_left(self) -> int:
        """Chunks to read until each part of the batch has a prompt ready, if one waits; 0: nothing is to be read."""
        lacking = 0 if self.group else min(self.served - len(self.ready), len(self.waiting))
        following = [len(self.waiting[i][1].tokens) for i in range(lacking)]
        left = self.group.left if self.group else max(following, default=0)
        return -(-left // self.chunks[0])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context before or during which the next chunk is read, if a part of the batch has no prompt ready."""
        if not self.chunks_left:
            yield
        elif self._thread is None:
            self.read_chunk()
            yield
        else:
            chunk = self._thread.submit(self.read_chunk)
            try:
                yield
            finally:
                chunk.result()

    def read_chunk(self) -> None:
        """Reads the next chunk; `chunks_left` is not 0."""
        if self.group is None:
            parts = [part for part in range(self.served) if part not in self.ready]
            self.group = self._begin({part: self.waiting.popleft() for part in parts if self.waiting})
        group, began = self.group, time.perf_counter()
        chunk, end = self.chunks[0], group.position + self.chunks[0]
        if 2 * group.left <= chunk:  # smaller chunks need less padding
            chunk = self.chunks[-1]
            end = group.position + whole_chunks(group.left, chunk)
        with self.session.model.context():
            group.state = self.session.program.read(group.state, chunk, group.position, end)
            jax.block_until_ready(group.state.length)
            if end in group.keep:
                _, request = next(iter(group.requests.values()))
                self.kept.append(kept(group.state, request.tokens, end))
        group.position = end
        group.seconds += time.perf_counter() - began
        if group.left <= 0:
            self.ready |= dict.fromkeys(group.requests, group)
            self.group = None

    def fill(self) -> None:
        """Fills free rows with prompts that are ready, and reads prompts as long as other rows are free."""
        while self._insert_ready() and self.chunks_left and len(self.session.texts) < self.slots:
            self.read_chunk()

    def _insert_ready(self) -> bool:
        """Fills free rows with prompts that are ready. Returns whether any was filled."""
        session, part_of = self.session, dict[int, int]()  # the part of each row to fill
        for row in range(self.slots):
            part = row // (session.done.size // self.parts)
            if row not in session.texts and part in self.ready and part not in part_of.values():
                part_of[row] = part
        for group in dict.fromkeys(self.ready[part] for part in part_of.values()):
            of_group = {row: part for row, part in part_of.items() if self.ready[part] is group}
            now = (session.round, group.seconds, session.decode_seconds)
            texts = {row: Text(*group.requests[part], *now) for row, part in of_group.items()}
            session.insert(group.state, texts, of_group)
        for part in part_of.values():
            del self.ready[part]
        return bool(part_of)

    def _begin(self, requests: dict[int, tuple[int, Request]]) -> Group:
        """A group of these requests before prefill, or after the longest stored prefix of all its prompts."""
        first = next(request for _, request in requests.values())
        prompts = [request.tokens for _, request in requests.values()]
        waiting = (request.tokens for _, request in self.waiting)
        keep = worth_keeping(prompts, waiting, self.chunks[0])
        fitting = [prefix for prefix in self.kept if prefix.begins(prompts)]
        self.kept = [prefix for prefix in fitting if prefix.position in keep]
        # A part without a prompt reads another part's, so that its row has the shared beginning too.
        rows = [requests[part][1] if part in requests else first for part in range(self.parts)]
        session = self.session
        with session.model.context():
            state = session.program.start(rows, session.model.config.eos, self.cache_len, session.requests)
            position = 0
            if fitting:
                state, position = go_on(state, fitting[-1]), fitting[-1].position
        if self.keep_state:
            state = dataclasses.replace(state, controller=None)
        return Group(requests, state, position, [end for end in keep if end > position])


BETWEEN_STOPS = 8  # rounds between two searches for stop strings


def decode(
    queue: PrefillQueue, stops: StopStrings, rounds: int = UNLIMITED, *, silent: bool = False
) -> Iterator[list[tuple[int, Generation]]]:
    """Decodes all requests of a new session and its queue. `generate`, `eval`, `bench`, `stream` and `chat` run this.

    Between two calls of the loop, free rows get prompts that are ready. During each call, one chunk of the next prompt
    is read.

    Args:
        rounds: most rounds of one call of the loop.
        silent: as for `Session.finish_compiling`.

    Yields:
        Before each call of the loop, and at the end: (index of the request, result) of the texts that finished since
        the last yield. Between two yields, `session.texts` are the others.
    """
    session = queue.session
    rounds = min(rounds, BETWEEN_STOPS if stops else UNLIMITED)
    while session.texts or queue.pending:
        ended = [row for row in session.texts if session.done[row]]
        results = [text_of_row(session, row, stops) for row in ended]
        yield [(session.texts.pop(row).place, result) for row, result in zip(ended, results, strict=True)]
        session.finish_compiling(silent=silent)
        queue.fill()
        if not session.texts and queue.chunks_left:
            queue.read_chunk()
        elif session.texts and not any(session.done[row] for row in session.texts):  # a first token may end a text
            waits = queue.chunks_left > 1 or (queue.chunks_left and len(session.texts) < queue.slots)
            with queue.reading():
                session.advance(1 if waits else rounds, more=1)
            session.stop(stopped_rows(session, stops) if stops else [])


def snapshots(session: Session, stops: StopStrings, rounds: int) -> Iterator[tuple[Generation, bool]]:
    """Decodes a new session of one request. Yields its result so far, every `rounds` rounds, and whether it is final.

    The first result has the token from prefill. If the loop still compiles then, stderr gets one message before the
    text, and no progress within it.
    """
    session.announce()
    for ended in decode(PrefillQueue(session), stops, rounds, silent=True):
        if not ended and session.texts:
            yield text_of_row(session, 0, stops), False
        for _, result in ended:
            yield result, True


def stopped_rows(session: Session, stops: StopStrings) -> list[int]:
    """Rows whose text has a stop string."""
    tokens, rows = fetch(session.state.tokens), []
    for row, text in session.texts.items():
        if not session.done[row]:
            prompt = text.request.tokens
            _, _, stopped = stops.cut(tokens[row, len(prompt) : session.length[row]].tolist(), prompt)
            rows += [row] * stopped
    return rows
