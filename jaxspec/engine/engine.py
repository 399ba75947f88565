"""`Engine`, the Python API: prompts in, text and statistics out."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, Unpack

from jax.sharding import Mesh

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.calibration import costs_of
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine.continuous_batching import PrefillQueue, decode, snapshots
from jaxspec.engine.default_method import default_of
from jaxspec.engine.generation import Generation, text_of_row
from jaxspec.engine.head_weights import load_control, load_head, warn_of_chat_args
from jaxspec.engine.prefix_cache import PromptMemory
from jaxspec.engine.program import Jobs, Program
from jaxspec.engine.requests import GenerateSettings, Prompt, is_conversation, listed, requests_of
from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import ShownText, StopStrings
from jaxspec.host import compilation
from jaxspec.host.arguments import integer
from jaxspec.host.compilation import Compilations
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.model.backend import tree_sizes

TOGETHER = 8  # the default batch size


class Engine:
    """A target with a method. Greedy text equals plain decoding's; sampled text has its distribution.

    Args:
        model: a loaded checkpoint, or the path of one.
        method: such as `ngram+chain,length=6`. None: the fastest by `jaxspec calibrate --all` if that was run on this
            device, otherwise the preferred trained head, or prompt lookup without any (`default_method.py`).
        dtype: float32, bfloat16 or float16, if `model` is a path.
        mesh: from `jaxspec.make_mesh`, or text such as `data=2,model=4`, if `model` is a path. None: one device.
        quantize: int8 or int4 weights for the target, if `model` is a path. None: as on disk.
        draft: the drafter's weights. None: load the head that the method names.
        control: the controller's weights. None: load them from that head, if the controller has any.
        costs: costs of drafting and verification on this device, for methods that need them and do not set them.
            `Engine.calibrated` measures them. For a default method they are measured here too.

    A program is compiled when its shape is first used, and kept in memory and in the user's cache folder. `warmup`
    compiles early.

    Raises:
        ValueError: there is no such method, or it needs costs, or a loaded model was given with `dtype` and the like.
        CheckpointError: there is no such checkpoint or head.
    """

    def __init__(
        self,
        model: Checkpoint | str | Path,
        method: str | Method | None = None,
        *,
        dtype: str | None = None,
        mesh: Mesh | str | None = None,
        quantize: str | None = None,
        draft: Any = None,
        control: Any = None,
        costs: CostTable | None = None,
    ):
        compilation.keep_compilations()
        given = _parsed(method)  # fails before anything is loaded
        self.model = _loaded(model, dtype=dtype, mesh=mesh, quantize=quantize)
        named = given or default_of(self.model).method
        if given is not None and named.needs_costs and costs is None:
            raise ValueError(
                f"{named} needs the costs of drafting and verification on this device: use "
                "Engine.calibrated(...), which measures it, give costs=, or write the costs into the method"
            )
        weights = load_head(self.model, named) if draft is None else draft
        if named.needs_costs and costs is None:
            costs = costs_of(self.model, named, weights, 1)
        self.named = named.fitted(weights)  # without the measured costs, which no other machine has
        self.method = self.named.with_costs(costs) if costs is not None else self.named
        learned = load_control(self.model, self.method, weights) if control is None else control
        self.models = Models(target=self.model.target, draft=weights, control=learned)
        self.tree_sizes = tree_sizes(by_cost=self.method.priced is not None)

    def __reduce__(self) -> NoReturn:
        """Refuses `copy` and `pickle`."""
        raise TypeError(
            "an Engine is neither copied nor pickled, because its weights are on devices: share it between threads, "
            "and make another from the same checkpoint in another process"
        )

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
        """An engine whose method has the measured costs of this device, if it needs them.

        They come from the table that `jaxspec calibrate` stores for this batch size. If there is none, it is measured
        first, with a message on stderr, as for the choice of a default method. The arguments are those of
        `Engine` without `costs`; `loading` is dtype, mesh and quantize.

        Args:
            batch_size: number of prompts decoded together. In larger batches fewer drafts pay. Other batch sizes can
                be decoded too, but with the decisions for this one.
        """
        compilation.keep_compilations()
        chosen, batch_size = _parsed(method), integer("batch_size", batch_size, 1)
        model = _loaded(model, **loading)
        if chosen is None:
            default = default_of(model, batch_size)
            say(f"method: {default}")
            chosen = default.method
        costs = None
        if chosen.needs_costs:
            draft = load_head(model, chosen) if draft is None else draft
            costs = costs_of(model, chosen, draft, batch_size)
        return cls(model, chosen, draft=draft, control=control, costs=costs)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        batch_size: int | None = None,
        log_probs: bool = False,
        record: bool = False,
        keep_state: bool = False,
        **settings: Unpack[GenerateSettings],
    ) -> list[Generation]:
        """Generates a text for every prompt. Prompts can have different lengths.

        Args:
            prompts: one or several strings, lists of token ids, or (with `chat`) lists of messages.
            stop: stop strings. A text ends before the first of them, even if it spans tokens or rounds.
            batch_size: largest number of prompts decoded together; None: 8. When one is finished, the next takes its
                row.
            log_probs: also return the log-probability of each token.
            record: also return the tree and verdict of every round.
            keep_state: let the controller keep what it has learnt from the previous prompt in the same row. With
                `batch_size` 1 this is one posterior over all prompts. It changes the speed, not the text. Rejection
                sampling is the exception: there the sampled text, but not its distribution, depends on earlier prompts.
            settings: those of `GenerateSettings`, such as max_new_tokens, temperature and chat.

        Raises:
            ValueError: a prompt is empty and there is no BOS, or it is too long, or a setting is out of range.
        """
        options = {"log_probs": log_probs, "record": record, "keep_state": keep_state}
        results = dict(self.generate_iter(prompts, stop=stop, batch_size=batch_size, **options, **settings))
        return [results[place] for place in sorted(results)]

    def generate_iter(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        stop: Sequence[str] = (),
        batch_size: int | None = None,
        log_probs: bool = False,
        record: bool = False,
        keep_state: bool = False,
        **settings: Unpack[GenerateSettings],
    ) -> Iterator[tuple[int, Generation]]:
        """Generates as `generate` does, and yields (index of the prompt, result) when each text is finished.

        A finished row is taken by the next prompt, which was prefilled during decoding. Raises ValueError as
        `generate`, at the call.
        """
        requests = self.requests(prompts, **settings)
        batch_size = TOGETHER if batch_size is None else batch_size
        stops = StopStrings(stop, self.model.tokenizer)
        return self.decode(requests, batch_size, stops, keep_state=keep_state, log_probs=log_probs, record=record)

    def decode(
        self,
        requests: Sequence[Request],
        batch_size: int = TOGETHER,
        stops: StopStrings | None = None,
        *,
        keep_state: bool = False,
        learnt: Sequence[Any] | None = None,
        log_probs: bool = False,
        record: bool = False,
    ) -> Iterator[tuple[int, Generation]]:
        """`generate_iter` for requests. `learnt` has the initial state of each row's controller, as in `Session`.

        Raises ValueError, at the call, if there are no requests or `batch_size` is below 1.
        """
        stops = stops or StopStrings((), self.model.tokenizer)
        first, later = _split(requests, batch_size)

        def results() -> Iterator[tuple[int, Generation]]:
            session = self.session(first, later, learnt=learnt, log_probs=log_probs, record=record)
            for ended in decode(PrefillQueue(session, keep_state), stops):
                yield from ended

        return results()

    def run(self, requests: Sequence[Request], batch_size: int | None = None, **options: Any) -> list[Generation]:
        """The results in the order of the requests, by default as one batch; `options` are those of `decode`."""
        results = dict(self.decode(requests, len(requests) if batch_size is None else batch_size, **options))
        return [results[place] for place in range(len(requests))]

    def stream(
        self, prompt: Prompt, *, rounds: int = 4, stop: Sequence[str] = (), **settings: Unpack[GenerateSettings]
    ) -> Iterator[str]:
        """Yields the text of one prompt during decoding, every `rounds` rounds; `settings` are those of `generate`."""
        rounds = integer("rounds", rounds, 1)
        (request,) = self.requests([prompt], **settings)
        stops, shown = StopStrings(stop, self.model.tokenizer), ShownText(self.model.tokenizer)

        def pieces() -> Iterator[str]:
            for result, final in snapshots(self.session([request]), stops, rounds):
                yield from shown.more(result.text, final=final, hold=stops.longest)

        return pieces()

    def warmup(
        self, max_prompt_tokens: int = 64, max_new_tokens: int = 128, batch_size: int = 1, greedy: bool = True
    ) -> None:
        """Compiles, before the first call, what `generate` needs for `batch_size` prompts and texts of these lengths.

        Lengths are rounded up to sizes that many prompts share; for other sizes `generate` compiles again. More prompts
        than `batch_size` need further programs, whose shapes depend on all prompts; see `compile`.

        Raises ValueError if prompt and text exceed the model's context, or a number is not a whole one.
        """
        prompt = [0] * integer("max_prompt_tokens", max_prompt_tokens, 1)
        prompts = [prompt] * integer("batch_size", batch_size, 1)
        requests = requests_of(self.model, prompts, max_new_tokens=max_new_tokens, temperature=0.0 if greedy else 1.0)
        session = self.session(requests)
        session.advance(1)
        text_of_row(session, 0, StopStrings((), self.model.tokenizer))

    def compile(self, requests: Sequence[Request], batch_size: int | None = None, **options: bool) -> None:
        """Compiles the first programs that these requests need, two at a time, without running them.

        If this takes longer than a second, stderr shows the progress. Decoding compiles by itself too, and begins with
        prefill while the loop is compiled. `options` are `log_probs` and `record`.
        """
        first, later = _split(requests, TOGETHER if batch_size is None else batch_size)
        Compilations(self.compilations(first, later, **options), itemgetter(0), repr).wait()

    # --- from requests to results

    def requests(self, prompts: Prompt | Sequence[Prompt], **settings: Unpack[GenerateSettings]) -> list[Request]:
        """The requests of a call of `generate`; see `requests_of`. Warns of other `chat_args` than in training."""
        requests = requests_of(self.model, prompts, **settings)
        if any(is_conversation(prompt, settings.get("chat", False)) for prompt in listed(prompts)):
            self.warn_of_chat_args(settings.get("chat_args") or {})
        return requests

    def warn_of_chat_args(self, chat_args: Mapping[str, Any]) -> None:
        """Warns on stderr, once, if the head was trained with other arguments of the chat template."""
        warn_of_chat_args(self.model, self.method, chat_args)

    def program(self, requests: Sequence[Request], *, log_probs: bool = False, record: bool = False) -> Program:
        """The program that decodes these requests."""
        greedy = all(request.sampling.temperature == 0 for request in requests)
        options = {"tree_sizes": self.tree_sizes, "log_probs": log_probs, "record": record}
        return Program(self.method.speculation(greedy, **options), self.models)

    def compilations(self, requests: Sequence[Request], later: Sequence[Request] = (), **options: bool) -> Jobs:
        """What `Compilations` runs before these requests and `later` ones are decoded; `options` as in `program`."""
        return self.program([*requests, *later], **options).compilations(self.model, requests, later)

    def session(
        self,
        requests: Sequence[Request],
        later: Sequence[Request] = (),
        *,
        learnt: Sequence[Any] | None = None,
        memory: PromptMemory | None = None,
        **options: bool,
    ) -> Session:
        """A batch after prefill; the arguments are those of `Session`, and `options` those of `program`."""
        program = self.program([*requests, *later], **options)
        return Session(self.model, program, requests, learnt, later, memory)


def _parsed(method: str | Method | None) -> Method | None:
    parsed = parse_method(method) if isinstance(method, str) else method
    if not isinstance(parsed, Method | None):
        raise TypeError(f"method must be a name such as 'ngram+chain', or a Method, not {parsed!r}")
    return parsed


def _split(requests: Sequence[Request], batch_size: int) -> tuple[Sequence[Request], Sequence[Request]]:
    """The first batch, and the others. Raises ValueError if there are no requests, or the batch has no rows."""
    if not requests:
        raise ValueError("there are no requests")
    size = integer("batch_size", batch_size, 1)
    return requests[:size], requests[size:]


def _loaded(model: Checkpoint | str | Path, **loading: Any) -> Checkpoint:
    if not isinstance(model, Checkpoint):
        return load(model, **loading)
    if unused := [name for name, value in loading.items() if value is not None]:
        raise ValueError(f"the model is loaded already: leave out {', '.join(unused)}")
    return model
