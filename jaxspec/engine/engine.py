"""What a user holds: prompts in, text and statistics out."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import costs_of
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.round_counts import first_tokens
from jaxspec.decoding.speculation import tree_sizes
from jaxspec.engine.generation import Generation
from jaxspec.engine.head_weights import load_control, load_head
from jaxspec.engine.program import Program, program_of
from jaxspec.engine.prompts import Prompt
from jaxspec.engine.recorded_rounds import rounds_of
from jaxspec.engine.requests import requests_of
from jaxspec.engine.session import UNLIMITED, Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.engine.text_stream import Unfinished
from jaxspec.host import compilation_cache
from jaxspec.host.compiling import compile_all
from jaxspec.host.processes import fetch
from jaxspec.methods.method import Method, default_method, parse_method

TOGETHER = 8  # prompts, where no batch size is given
BETWEEN_STOPS = 8  # rounds between two looks for stop strings


class Engine:
    """A target with a method, generating text that equals plain decoding.

    Args:
        model: a loaded checkpoint, or the path of one.
        method: such as `ngram+chain,length=6`; None takes the best trained head in the checkpoint.
        dtype: float32 or bfloat16, where `model` is a path.
        mesh: as `jaxspec.make_mesh` gives it, where `model` is a path; None: one device.
        quantize: int8 or int4 kernels for the target, where `model` is a path; None: as they are on disk.
        draft: the drafter's weights, where they are in memory; None loads the head that the method names.
        control: the controller's weights, likewise; None loads them from that head, where the controller needs any.
        costs: what drafting and verification cost here, for a method that decides by it and does not say itself;
            `Engine.calibrated` measures them.

    Compilation happens on first use of a shape and is kept in the user's cache folder; `warmup` does it ahead.

    Raises:
        ValueError: no such method, or one that needs costs.
        CheckpointError: no such checkpoint or head.
    """

    def __init__(
        self,
        model: Checkpoint | str | Path,
        method: str | Method | None = None,
        *,
        dtype: str | None = None,
        mesh: Mesh | None = None,
        quantize: str | None = None,
        draft: Any = None,
        control: Any = None,
        costs: CostTable | None = None,
    ):
        compilation_cache.keep_compilations()
        typed = parse_method(method) if isinstance(method, str) else method  # a wrong one fails before anything loads
        self.model = model if isinstance(model, Checkpoint) else load(model, dtype, mesh, quantize)
        self.method = typed or default_method(self.model.heads)
        if self.method.needs_costs:
            if costs is None:
                raise ValueError(
                    f"{self.method} decides by what drafting and verification cost on this device: take "
                    "Engine.calibrated(...), which measures it, give costs=, or write the costs into the method"
                )
            self.method = self.method.with_costs(costs)
        weights = load_head(self.model, self.method) if draft is None else draft
        learned = load_control(self.model, self.method, weights) if control is None else control
        self.models = Models(target=self.model.target, draft=weights, control=learned)
        self.tree_sizes = tree_sizes()

    @classmethod
    def calibrated(
        cls,
        model: Checkpoint | str | Path,
        method: str | Method | None = None,
        *,
        draft: Any = None,
        control: Any = None,
        **loading: Any,
    ) -> "Engine":
        """An engine whose method knows what drafting and verification cost here, where it needs to.

        By the table that `jaxspec calibrate` keeps; where there is none, it is measured first, and stderr says so.
        Arguments are `Engine`'s, without `costs`; `loading` holds dtype, mesh and quantize.
        """
        compilation_cache.keep_compilations()
        typed = parse_method(method) if isinstance(method, str) else method
        model = model if isinstance(model, Checkpoint) else load(model, **loading)
        method = typed or default_method(model.heads)
        costs = None
        if method.needs_costs:
            draft = load_head(model, method) if draft is None else draft
            costs = costs_of(model, method, draft)
        return cls(model, method, draft=draft, control=control, costs=costs)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        batch_size: int | None = None,
        log_probs: bool = False,
        record: bool = False,
        keep_state: bool = False,
        **settings: Any,
    ) -> list[Generation]:
        """Generates for every prompt; prompts may have any lengths.

        Args:
            prompts: strings, lists of token ids, or (with `chat`) lists of messages; one or several.
            stop: strings that end the text where they first appear, across tokens and rounds.
            batch_size: prompts decoded together; None: all of them, at most 8.
            log_probs: also return log p of each token.
            record: also return every round's tree and verdict.
            keep_state: the controller goes on with what it has learnt: row i of each batch from row i of the batch
                before; with `batch_size` 1, one posterior over all prompts. It changes no text, only how fast it comes,
                but under rejection sampling: what is drawn (not its distribution) depends on the prompts before.
            settings: `sampling`, a SamplingParams; its fields by name, each one value or one a prompt, such as
                max_new_tokens=128, temperature=0.0, top_k=0, top_p=1.0 and seed=0; `seeds` and `chat`. See
                `requests_of`.

        Raises:
            ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
        """
        requests = requests_of(self.model, prompts, **settings)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        size = batch_size or min(len(requests), TOGETHER)
        stops = StopStrings(stop, self.model.tokenizer)
        done: list[Generation] = []
        for i in range(0, len(requests), size):
            batch = requests[i : i + size]
            learnt = [one.controller for one in done[i - size : i][: len(batch)]] if keep_state and i else None
            done += self.run(batch, stops, log_probs=log_probs, record=record, learnt=learnt)
        return done

    def stream(self, prompt: Prompt, *, rounds: int = 4, stop: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """Yields the text of one prompt as it comes, every `rounds` rounds; `settings` as for `generate`."""
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, not {rounds}")
        (request,) = requests_of(self.model, [prompt], **settings)
        stops, unfinished = StopStrings(stop, self.model.tokenizer), Unfinished(self.model.tokenizer)
        session, stopped = self.session([request]), False
        while not stopped:
            session.advance(rounds)
            tokens = fetch(session.state.tokens)[0, len(request.tokens) : session.length[0]].tolist()
            _, text, stopped = stops.cut(tokens)
            stopped |= session.finished
            yield from unfinished.more(text, final=stopped, hold=stops.longest)

    def warmup(
        self, max_prompt_tokens: int = 64, max_new_tokens: int = 128, batch_size: int = 1, greedy: bool = True
    ) -> None:
        """Compiles what `generate` needs for prompts up to this long, so that the first call does not wait.

        Raises:
            ValueError: the model has no room for such a prompt and text.
        """
        prompts = [[0] * max_prompt_tokens] * batch_size
        requests = requests_of(self.model, prompts, max_new_tokens=max_new_tokens, temperature=0.0 if greedy else 1.0)
        self.session(requests).advance(1)

    def compile(self, requests: Sequence[Request], **options: bool) -> None:
        """Compiles what decoding these requests together begins with, two programs side by side, without running it.

        Where it takes longer than a second, stderr says how far it is. `options` are `log_probs` and `record`.
        """
        compile_all(self.compilations(requests, **options), lambda key: f"{key[0]} of {self.method}")

    # --- from requests to results

    def program(self, requests: Sequence[Request], *, log_probs: bool = False, record: bool = False) -> Program:
        """What decodes these requests."""
        greedy = all(request.sampling.temperature == 0 for request in requests)
        options = {"tree_sizes": self.tree_sizes, "log_probs": log_probs, "record": record}
        return program_of(self.method, self.models, greedy=greedy, **options)

    def compilations(self, requests: Sequence[Request], **options: bool) -> dict[tuple[Any, ...], Callable[[], None]]:
        """What `compile_all` calls before these requests are decoded; `options` as for `program`.

        Nothing on a mesh: how the arrays lie there between two programs is known once the first has run.
        """
        if self.model.mesh is not None:
            return {}
        with self.model.context():
            found = self.program(requests, **options).compilations(requests, self.model.config.eos)

        def compile_one(program: Callable[[], None]) -> None:
            with self.model.context():
                program()

        return {key: partial(compile_one, program) for key, program in found.items()}

    def session(
        self,
        requests: Sequence[Request],
        *,
        log_probs: bool = False,
        record: bool = False,
        learnt: Sequence[Any] | None = None,
    ) -> Session:
        """A batch whose prompts are read, to be decoded in calls of the loop; see `Session`."""
        return Session(self.model, self.program(requests, log_probs=log_probs, record=record), requests, learnt)

    def run(
        self,
        requests: Sequence[Request],
        stops: StopStrings | None = None,
        *,
        log_probs: bool = False,
        record: bool = False,
        learnt: Sequence[Any] | None = None,
    ) -> list[Generation]:
        """Decodes one batch; what `generate` does with each, and what a measurement times.

        Args:
            learnt: what each row's controller starts from, a `Generation.controller` or None; None: all from nothing.
        """
        stops = stops or StopStrings((), self.model.tokenizer)
        session = self.session(requests, log_probs=log_probs, record=record, learnt=learnt)
        while True:
            session.advance(BETWEEN_STOPS if stops else UNLIMITED)
            if stops:
                session.stop(self._stopped(session, requests, stops))
            if session.finished:
                break
        state = session.state
        kept = (state.tokens, state.length, state.round, state.history, state.log_prob, state.trace, state.controller)
        host = fetch(kept)
        return [self._result(session, host, request, row, stops) for row, request in enumerate(requests)]

    def _stopped(self, session: Session, requests: Sequence[Request], stops: StopStrings) -> list[int]:
        """Rows whose text has a stop string."""
        texts, found = fetch(session.state.tokens), []
        for row, request in enumerate(requests):
            if not session.done[row]:
                _, _, stopped = stops.cut(texts[row, len(request.tokens) : session.length[row]].tolist())
                found += [row] * stopped
        return found

    def _result(self, session: Session, host: tuple, request: Request, row: int, stops: StopStrings) -> Generation:
        all_tokens, length, rounds, history, log_prob, trace, controller = host
        begin = len(request.tokens)
        kept, text, stopped = stops.cut(all_tokens[row, begin : int(length[row])].tolist())
        tokens = all_tokens[row, begin : begin + kept].tolist()
        ended = bool(tokens) and tokens[-1] in self.model.config.eos
        counts = first_tokens(jax.tree.map(lambda column: column[row, : int(rounds)], history), len(tokens))
        return Generation(
            prompt_tokens=request.tokens,
            tokens=tokens,
            text=text,
            finish_reason="stop" if stopped else "eos" if ended else "length",
            history=counts,
            log_probs=None if log_prob is None else log_prob[row, begin : begin + len(tokens)],
            rounds=None if trace is None else rounds_of(trace, row, counts, request.tokens + tokens, begin),
            prefill_seconds=session.prefill_seconds,
            decode_seconds=session.decode_seconds,
            controller=jax.tree.map(lambda leaf: leaf[row], controller),
        )
