"""What a user holds: prompts in, text and statistics out."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.decoding import decode_state, loop
from jaxspec.decoding.batch import start, take_up
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.prefill import prefill
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request
from jaxspec.engine.generation import Generation, cut_history
from jaxspec.engine.head_weights import load_control, load_head
from jaxspec.engine.prompts import Prompt
from jaxspec.engine.recorded_rounds import rounds_of
from jaxspec.engine.requests import requests_of
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.engine.text_stream import Unfinished
from jaxspec.host import compilation_cache
from jaxspec.host.processes import fetch, put_like
from jaxspec.methods.method import Method, default_method, needs_costs, parse_method

UNLIMITED = np.int32(2**30)
CPU_SIZES = (1, 2, 4, 6, 8, 16, 32, 64)  # on a CPU every node of a tree costs
ACCELERATOR_SIZES = (8, 16, 32, 64)


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

    A builder that needs to know what drafting and verification cost gets that from the table that `jaxspec calibrate`
    keeps; where there is none, it is measured first, and stderr says so. `method` then has the numbers.

    Compilation happens on first use of a shape and is kept in the user's cache folder; `warmup` does it ahead.
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
    ):
        compilation_cache.keep_compilations()
        self.model = model if isinstance(model, Checkpoint) else load(model, dtype, mesh, quantize)
        self.method = parse_method(method) if isinstance(method, str) else method or default_method(self.model.heads)
        weights = load_head(self.model, self.method) if draft is None else draft
        if needs_costs(self.method.builder):
            from jaxspec.costs.calibration import costs_of  # which measures with engines

            self.method = self.method.with_costs(costs_of(self.model, self.method, weights))
        learned = load_control(self.model, self.method, weights) if control is None else control
        self.models = Models(target=self.model.target, draft=weights, control=learned)
        on_cpu = jax.default_backend() == "cpu"
        self.tree_sizes = CPU_SIZES if on_cpu else ACCELERATOR_SIZES
        # Recording is for looking, not for timing: on a CPU, which takes longest to compile, one size has to do.
        self.recorded_sizes = () if on_cpu else ACCELERATOR_SIZES

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
        seed: int = 0,
        seeds: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        chat: bool = False,
        batch_size: int | None = None,
        log_probs: bool = False,
        record: bool = False,
        keep_state: bool = False,
        **unsupported: Any,
    ) -> list[Generation]:
        """Generates for every prompt; prompts may have any lengths.

        Args:
            prompts: strings, lists of token ids, or (with `chat`) lists of messages; one or several.
            temperature, top_k, top_p: one value, or one a prompt. Temperature 0 is greedy; top_k 0 and top_p 1 are off.
            seed: prompt i draws from fold_in(key(seed), i), whatever the batch; `seeds` gives each prompt its own.
            stop: strings that end the text where they first appear, across tokens and rounds.
            chat: put each prompt through the tokenizer's chat template.
            batch_size: prompts decoded together; None: all of them, at most 8.
            log_probs: also return log p of each token.
            record: also return every round's tree and verdict.
            keep_state: the controller goes on with what it has learnt: row i of each batch from row i of the batch
                before; with `batch_size` 1, one posterior over all prompts. At temperature 0 it changes no text, only
                how fast it comes; above it, what is drawn (not its distribution) then depends on the prompts before.

        Raises:
            ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
        """
        requests = requests_of(
            self.model,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            seeds=seeds,
            chat=chat,
            **unsupported,
        )
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        size = batch_size or min(len(requests), 8)
        stops = StopStrings(stop, self.model.tokenizer)
        done: list[Generation] = []
        for i in range(0, len(requests), size):
            batch = requests[i : i + size]
            learnt = [one.controller for one in done[i - size : i][: len(batch)]] if keep_state and i else None
            done += self.run(batch, stops, log_probs, record, learnt)
        return done

    def stream(self, prompt: Prompt, *, rounds: int = 4, stop: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """Yields the text of one prompt as it comes, every `rounds` rounds; `settings` as for `generate`."""
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, not {rounds}")
        (request,) = requests_of(self.model, [prompt], **settings)
        stops, unfinished = StopStrings(stop, self.model.tokenizer), Unfinished(self.model.tokenizer)
        for state, _ in self.stages([request], False, False, rounds):
            length, done, texts = fetch((state.length, state.done, state.tokens))
            tokens = texts[0, len(request.tokens) : length[0]].tolist()
            _, text, stopped = stops.cut(tokens)
            yield from unfinished.more(text, final=stopped or bool(done[0]), hold=stops.longest)
            if stopped:
                return

    def warmup(
        self, max_prompt_tokens: int = 64, max_new_tokens: int = 128, batch_size: int = 1, greedy: bool = True
    ) -> None:
        """Compiles what `generate` needs for prompts up to this long, so that the first call does not wait.

        Raises:
            ValueError: the model has no room for such a prompt and text.
        """
        prompts = [[0] * max_prompt_tokens] * batch_size
        requests = requests_of(self.model, prompts, max_new_tokens=max_new_tokens, temperature=0.0 if greedy else 1.0)
        for state, _ in self.stages(requests, False, False, 1):
            jax.block_until_ready(state.length)
            return

    # --- from requests to results

    def run(
        self,
        requests: list[Request],
        stops: StopStrings,
        log_probs: bool,
        record: bool,
        learnt: Sequence[Any] | None = None,
    ) -> list[Generation]:
        """Decodes one batch; what `generate` does with each, and what a measurement times.

        Args:
            learnt: what each row's controller starts from, a `Generation.controller` or None; None: all from nothing.
        """
        rounds = 8 if stops else UNLIMITED
        state, seconds = None, (0.0, 0.0)
        stopped: dict[int, int] = {}
        for state, seconds in self.stages(requests, log_probs, record, rounds, stopped, learnt):  # noqa: B007
            if stops:
                stopped |= self._find_stops(state, requests, stops, stopped)
        assert state is not None
        wanted = ("tokens", "length", "round", "history", "log_prob", "trace", "controller")
        host = SimpleNamespace(**fetch({name: getattr(state, name) for name in wanted}))
        return [self._result(host, request, row, stops, seconds) for row, request in enumerate(requests)]

    def stages(
        self,
        requests: list[Request],
        log_probs: bool,
        record: bool,
        rounds: int | np.int32,
        stopped: dict[int, int] | None = None,
        learnt: Sequence[Any] | None = None,
    ) -> Iterator[tuple[decode_state.DecodeState, tuple[float, float]]]:
        """Decodes in calls of `rounds` rounds, yielding the state after each, and (prefill, decode) seconds so far.

        Rows put into `stopped` by the receiver are decoded no further. The cache grows between calls, as it fills.
        """
        greedy = all(r.temperature == 0 for r in requests)
        sizes = self.recorded_sizes if record else self.tree_sizes
        spec = self.method.speculation(greedy, tree_sizes=sizes, log_probs=log_probs, record=record)
        chunk, rows = shapes(spec, requests)
        with self.model.context():
            state = start(spec, self.models, requests, self.model.config.eos, rows)
            if learnt is not None:
                state = dataclasses.replace(state, controller=take_up(state.controller, learnt))
            jax.block_until_ready(state.length)
            began = time.perf_counter()
            state = prefill(spec.drafter, self.models, state, chunk)
            jax.block_until_ready(state.length)
            prefilled = time.perf_counter()
        spent = 0.0
        while True:
            with self.model.context():  # and left before the receiver has its turn
                began_decode = time.perf_counter()
                state = loop.decode(spec, self.models, state, jnp.int32(rounds))
                length, done = fetch((state.length, state.done))
                spent += time.perf_counter() - began_decode
            yield state, (prefilled - began, spent)
            if stopped:
                done = done | np.isin(np.arange(len(done)), list(stopped))
                state = dataclasses.replace(state, done=put_like(done, state.done))
            if done.all():
                return
            if (np.where(done, 0, length).max() + decode_state.margin(spec)) > rows:
                rows *= 2
                with self.model.context():
                    state = decode_state.enlarge(spec.drafter, state, rows)

    def _find_stops(self, state, requests, stops: StopStrings, known: dict[int, int]) -> dict[int, int]:
        length, texts = fetch((state.length, state.tokens))
        found = {}
        for row, request in enumerate(requests):
            if row not in known:
                kept, _, stopped = stops.cut(texts[row, len(request.tokens) : length[row]].tolist())
                if stopped:
                    found[row] = kept
        return found

    def _result(self, host, request: Request, row: int, stops: StopStrings, seconds: tuple[float, float]) -> Generation:
        begin = len(request.tokens)
        tokens = host.tokens[row, begin : int(host.length[row])].tolist()
        kept, text, stopped = stops.cut(tokens)
        tokens = tokens[:kept]
        ended = bool(tokens) and tokens[-1] in self.model.config.eos
        history = cut_history(host.history[row, : int(host.round)], len(tokens))
        rounds = None if host.trace is None else rounds_of(host.trace, row, history, request.tokens + tokens, begin)
        return Generation(
            prompt_tokens=request.tokens,
            tokens=tokens,
            text=text,
            finish_reason="stop" if stopped else "eos" if ended else "length",
            history=history,
            log_probs=None if host.log_prob is None else host.log_prob[row, begin : begin + len(tokens)],
            rounds=rounds,
            prefill_seconds=seconds[0],
            decode_seconds=seconds[1],
            controller=jax.tree.map(lambda leaf: leaf[row], host.controller),
        )
