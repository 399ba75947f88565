"""What a user holds: prompts in, text and statistics out."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import costs_of
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import tree_sizes
from jaxspec.engine.finished_text import all_texts, text_of_row
from jaxspec.engine.generation import Generation
from jaxspec.engine.head_weights import load_control, load_head
from jaxspec.engine.program import Program, program_of
from jaxspec.engine.prompts import Prompt
from jaxspec.engine.reading_ahead import ReadingAhead
from jaxspec.engine.refilled import BETWEEN_STOPS, refilled, stopped_rows
from jaxspec.engine.requests import requests_of
from jaxspec.engine.session import UNLIMITED, Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.engine.text_stream import Unfinished
from jaxspec.host import compilation_cache
from jaxspec.host.arguments import integer
from jaxspec.host.compiling import compile_all
from jaxspec.host.processes import fetch
from jaxspec.methods.method import Method, default_method, parse_method

TOGETHER = 8  # prompts, where no batch size is given


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
        self.method = self.method.fitted(weights)
        learned = load_control(self.model, self.method, weights) if control is None else control
        self.models = Models(target=self.model.target, draft=weights, control=learned)
        self.tree_sizes = tree_sizes()

    @classmethod
    def calibrated(
        cls,
        model: Checkpoint | str | Path,
        method: str | Method | None = None,
        *,
        batch_size: int = 1,
        draft: Any = None,
        control: Any = None,
        **loading: Any,
    ) -> "Engine":
        """An engine whose method knows what drafting and verification cost here, where it needs to.

        By the table that `jaxspec calibrate` keeps for this batch size; where there is none, it is measured first, and
        stderr says so. Arguments are `Engine`'s, without `costs`; `loading` holds dtype, mesh and quantize.

        Args:
            batch_size: prompts that are to be decoded together. The more they are, the less a token of each is worth
                drafting: any number may be decoded, but it is decided as for this one.
        """
        compilation_cache.keep_compilations()
        typed = parse_method(method) if isinstance(method, str) else method
        model = model if isinstance(model, Checkpoint) else load(model, **loading)
        method = typed or default_method(model.heads)
        costs = None
        if method.needs_costs:
            draft = load_head(model, method) if draft is None else draft
            costs = costs_of(model, method, draft, batch_size)
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
            batch_size: prompts decoded together, at most; None: 8. Whose text is done makes room for the next.
            log_probs: also return log p of each token.
            record: also return every round's tree and verdict.
            keep_state: the controller goes on with what it has learnt: of each prompt from the one whose row it takes;
                with `batch_size` 1, one posterior over all prompts. It changes no text, only how fast it comes, but
                under rejection sampling: what is drawn (not its distribution) depends on the prompts before.
            settings: `sampling`, a SamplingParams; its fields by name, each one value or one a prompt, such as
                max_new_tokens=128, temperature=0.0, top_k=0, top_p=1.0 and seed=0; `seeds`, `chat` and `truncate`. See
                `requests_of`.

        Raises:
            ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
        """
        asked = {"log_probs": log_probs, "record": record, "keep_state": keep_state}
        found = dict(self.generate_iter(prompts, stop=stop, batch_size=batch_size, **asked, **settings))
        return [found[place] for place in sorted(found)]

    def generate_iter(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        batch_size: int | None = None,
        log_probs: bool = False,
        record: bool = False,
        keep_state: bool = False,
        **settings: Any,
    ) -> Iterator[tuple[int, Generation]]:
        """Generates for every prompt, as `generate` does, and yields (place of the prompt, result) as texts are done.

        A row of the batch whose text is done goes to the next prompt at once, which was read meanwhile.

        Raises:
            ValueError: as `generate`, and at once.
        """
        requests = requests_of(self.model, prompts, **settings)
        batch_size = TOGETHER if batch_size is None else integer("batch_size", batch_size, 1)
        stops = StopStrings(stop, self.model.tokenizer)
        options = {"log_probs": log_probs, "record": record, "keep_state": keep_state}
        return self.run_refilled(requests, batch_size, stops, **options)

    def run_refilled(
        self,
        requests: Sequence[Request],
        batch_size: int = TOGETHER,
        stops: StopStrings | None = None,
        *,
        keep_state: bool = False,
        **options: bool,
    ) -> Iterator[tuple[int, Generation]]:
        """What `generate_iter` does with its requests, of which there is at least one; `options` as for `program`."""
        stops = stops or StopStrings((), self.model.tokenizer)
        first, later = requests[:batch_size], requests[batch_size:]
        program = self.program(requests, **options)
        ahead = ReadingAhead(self.model, program, requests, len(first), keep_state=keep_state)
        yield from refilled(Session(self.model, program, first, later=later), ahead, len(first), stops)

    def stream(self, prompt: Prompt, *, rounds: int = 4, stop: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """Yields the text of one prompt as it comes, every `rounds` rounds; `settings` as for `generate`."""
        rounds = integer("rounds", rounds, 1)
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
        """Compiles what `generate` needs for `batch_size` prompts up to this long, so that the first call need not.

        More prompts than that need two more programs, whose shapes depend on all of them: see `compile`.

        Raises:
            ValueError: the model has no room for such a prompt and text.
        """
        prompts = [[0] * max_prompt_tokens] * batch_size
        requests = requests_of(self.model, prompts, max_new_tokens=max_new_tokens, temperature=0.0 if greedy else 1.0)
        session = self.session(requests)
        session.advance(1)
        text_of_row(session, 0, StopStrings((), self.model.tokenizer))

    def compile(self, requests: Sequence[Request], batch_size: int | None = None, **options: bool) -> None:
        """Compiles what decoding these requests begins with, two programs side by side, without running it.

        Where it takes longer than a second, stderr says how far it is. `options` are `log_probs` and `record`.
        """
        size = batch_size or TOGETHER
        found = self.compilations(requests[:size], requests[size:], **options)
        compile_all(found, lambda key: f"{key[0]} of {self.method}")

    # --- from requests to results

    def program(self, requests: Sequence[Request], *, log_probs: bool = False, record: bool = False) -> Program:
        """What decodes these requests."""
        greedy = all(request.sampling.temperature == 0 for request in requests)
        options = {"tree_sizes": self.tree_sizes, "log_probs": log_probs, "record": record}
        return program_of(self.method, self.models, greedy=greedy, **options)

    def compilations(
        self, requests: Sequence[Request], later: Sequence[Request] = (), **options: bool
    ) -> dict[tuple[Any, ...], Callable[[], None]]:
        """What `compile_all` calls before these requests are decoded together; `options` as for `program`.

        Nothing on a mesh: how the arrays lie there between two programs is known once the first has run.

        Args:
            later: requests that are to take rows of the others.
        """
        if self.model.mesh is not None:
            return {}
        with self.model.context():
            program = self.program([*requests, *later], **options)
            found = program.compilations(requests, self.model.config.eos, later)

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
        """Decodes one batch until every row is done; what a measurement times.

        Args:
            learnt: what each row's controller starts from, a `Generation.controller` or None; None: all from nothing.
        """
        stops = stops or StopStrings((), self.model.tokenizer)
        session = self.session(requests, log_probs=log_probs, record=record, learnt=learnt)
        while not session.finished:
            session.advance(BETWEEN_STOPS if stops else UNLIMITED)
            session.stop(stopped_rows(session, stops) if stops else [])
        return all_texts(session, stops)
