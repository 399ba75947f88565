"""Adapter for lm-evaluation-harness: generation with continuous batching, scores by the target. The command is
`python -m jaxspec.evaluate.harness --model jaxspec --model_args target=CKPT --batch_size 8 --tasks TASK`.
"""

import functools
import importlib.util
import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jinja2

if __name__ == "__main__" and importlib.util.find_spec("lm_eval") is None:
    sys.exit("error: this command needs lm-evaluation-harness: pip install lm_eval")
from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import STATEFUL, refuse_stateful
from jaxspec.engine.scoring import Text, scores
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.arguments import integer
from jaxspec.host.hosts import Hosts, check_alone
from jaxspec.host.jax_environment import expect_no_chip, give_threads
from jaxspec.host.terminal import progress, say
from jaxspec.options.shared import Devices, parse_chat_args

NAME = "jaxspec"
MESH = ("--model_args", "mesh=model=N")  # the harness joins several --model_args
NEW_TOKENS = 256  # the budget if a task gives none; the harness has the same default for transformers


class Jaxspec(TemplateLM):
    """A model for the harness: a target and a decoding method."""

    def __init__(
        self,
        target: str,
        method: str | None = None,
        batch_size: int | str = 1,
        mesh: str | None = None,
        dtype: str | None = None,
        quantize: str | None = None,
        max_length: int | None = None,
        seed: int = 0,
        coordinator: str | None = None,
        processes: int | None = None,
        process_id: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        chat_args: str | Mapping[str, Any] = "",
        system: str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
    ):
        """Loads the model. The arguments are the keys of `--model_args`, and `--batch_size`.

        Args:
            target, method, batch_size, mesh, dtype, quantize, seed, coordinator, processes, process_id, system: the
                options of `jaxspec eval`.
            max_length: most positions of a text; None: the model's.
            add_bos_token: False: no special tokens are added to texts; otherwise the tokenizer decides.
            prefix_token_id: the token that replaces an empty context; None: the tokenizer's BOS, or EOS without one.
            chat_args: arguments of the chat template: `enable_thinking=false`, or a JSON object.
            device, max_batch_size: ignored. The harness passes them to every model.

        Raises:
            ValueError: options contradict each other or the checkpoint, or several processes have no mesh.
        """
        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise ValueError(f"batch_size is a whole number from 1 on, not {batch_size}; `auto` is not supported")
        hosts = Hosts(coordinator=coordinator, processes=processes, process_id=process_id)
        if mesh is None:
            if hosts != Hosts():
                raise ValueError("coordinator, processes and process_id need a mesh, such as mesh='data=2'")
            check_alone(_typed(sys.argv), MESH)
        mesh_of_all = Devices(mesh=mesh, hosts=hosts).open(several=True)
        if jax.process_index():
            os.environ["LOCAL_RANK"] = str(jax.process_index())  # then only the first process writes results
        loading = {"dtype": dtype, "mesh": mesh_of_all, "quantize": quantize}
        self.engine = Engine.calibrated(target, method, batch_size=int(batch_size), **loading)
        self.tokenizer = self.engine.model.tokenizer
        if self.tokenizer is None:
            raise ValueError(f"{target} has no tokenizer, which the harness needs")
        if isinstance(chat_args, str):
            chat_args = parse_chat_args((chat_args,) if chat_args else ())
        self.chat_format = ChatFormat(chat_args, system)
        if self.chat_format and not self.tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {target} has no chat template; leave out chat_args and system")
        if self.chat_format.arguments:
            self.chat_format.check(self.tokenizer.template_for(dict(self.chat_format.arguments)))
        self.format_unused = bool(self.chat_format)
        shape = self.engine.model.config.model
        if prefix_token_id is not None:
            integer("prefix_token_id", prefix_token_id, 0, shape.vocab_size - 1)
        ids = (prefix_token_id, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        prefixes = [token for token in ids if token is not None]
        if not prefixes:
            raise ValueError(f"the tokenizer of {target} has no BOS and no EOS token: give prefix_token_id=ID")
        if add_bos_token and self.tokenizer.encode("")[:1] != [self.tokenizer.bos_token_id]:
            raise ValueError(f"the tokenizer of {target} adds no BOS token to texts: leave out add_bos_token")
        self._prefix, self.add_bos_token = prefixes[0], add_bos_token
        room = shape.usable_length
        if max_length is not None:
            integer("max_length", max_length, 1)
        self.max_length, self.batch_size, self.seed = min(max_length or room, room), int(batch_size), seed

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "Jaxspec":
        """The model of `--model_args`, which take precedence over the harness's additional options.

        Raises ValueError for unknown arguments, and as `__init__`.
        """
        besides = {name: value for name, value in (additional_config or {}).items() if value is not None}
        known = list(inspect.signature(cls).parameters)
        if unknown := [name for name in arg_dict if name not in known]:
            raise ValueError(f"--model_args has no {unknown[0]}; it has {', '.join(known)}")
        if "target" not in arg_dict:
            raise ValueError("--model_args needs target=CKPT")
        return cls(**{**besides, **arg_dict})

    # --- required of every model of the harness

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token that replaces an empty context."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """The harness caches prompts under this name. They depend on the chat template."""
        return f"{self.engine.model.path} {self.chat_format}" if self.chat_format else str(self.engine.model.path)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text; by default with special tokens, unless it begins with the prefix already."""
        if add_special_tokens is None:
            return self._encode_after(self.prefix_token_id, string)
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _encode_after(self, token: int | None, text: str) -> list[int]:
        """Token ids of a text, with special tokens unless it begins with `token` already."""
        begins = token is not None and has_bos_prefix(text, self.tokenizer.decode([token]) or None)
        return self.tokenizer.encode(text, add_special_tokens=not begins and self.add_bos_token is not False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as prompt text, by the tokenizer's chat template.

        As with transformers, system messages are left out, with a warning, if the template refuses the conversation.
        """
        self.engine.warn_of_chat_args(self.chat_format.arguments)
        self.format_unused = False
        rest = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        try:
            return self.chat_format.render(self.tokenizer, chat_history, **rest)
        except jinja2.TemplateError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if self.chat_format.system is not None or others == chat_history:
                advice = "leave out system or --apply_chat_template"
                raise ValueError(f"the chat template does not take a conversation ({error}); {advice}") from error
            _warn(f"system messages are left out, because the chat template does not take them: {error}")
            return self.chat_format.render(self.tokenizer, others, **rest)

    def _warn_of_unused_format(self) -> None:
        if self.format_unused:
            say("warning: chat_args and system have no effect without --apply_chat_template")
            self.format_unused = False

    def get_model_info(self) -> dict[str, str]:
        return {"method": str(self.engine.method), "dtype": str(self.engine.model.target.dtype)}

    # --- scores

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """(log p, whether it is greedy decoding's) of each request's last element."""
        return self._scores([(context, continuation) for _, context, continuation in requests])

    def _scores(self, texts: Sequence[Text]) -> list[tuple[float, bool]]:
        found, room = {}, self.max_length
        self._warn_of_unused_format()
        _say_shortened(sum(len(context) + len(continuation) > room + 1 for context, continuation in texts))
        with progress("score", len(texts)) as shown:
            for place, score in scores(self.engine.model, texts, self.batch_size, room):
                found[place] = (score.log_prob, score.greedy)
                shown.advance()
        return [found[place] for place in range(len(texts))]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p of each whole text, in windows of `max_length` tokens."""
        windows, owner = [], []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            parts = [*get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)]
            windows += map(make_disjoint_window, parts)
            owner += [number] * len(parts)
        found = [0.0] * len(requests)
        for number, (log_prob, _) in zip(owner, self._scores(windows), strict=True):
            found[number] += log_prob
        return found

    # --- texts

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generates a text after each context. Text i draws its random numbers from fold_in(key(seed), i)."""
        self._warn_of_unused_format()
        groups = defaultdict[tuple[str, ...], list[Request]](list)
        shortened = 0
        for index, request in enumerate(requests):
            context, settings = request.args
            stops, sampling = sampling_of(settings, self.seed)
            tokens = self._encode_after(self.tokenizer.bos_token_id, context) or [self.prefix_token_id]
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise ValueError(
                    f"{sampling.max_new_tokens} new tokens leave no room for a prompt: the model has "
                    f"{self.max_length} positions; lower it with --gen_kwargs max_gen_toks=N"
                )
            shortened += len(tokens) > room
            groups[stops].append(Request(tokens[-room:], sampling, index))
        _say_shortened(shortened)
        found = {}
        with progress("answer", len(requests)) as shown:
            for stops, asked in groups.items():
                self.engine.compile(asked, self.batch_size)
                texts = self.engine.decode(asked, self.batch_size, StopStrings(stops, self.tokenizer))
                for place, text in texts:
                    found[asked[place].index] = text.text
                    shown.advance()
        return [found[index] for index in range(len(requests))]


def sampling_of(settings: dict[str, Any], seed: int) -> tuple[tuple[str, ...], SamplingParams]:
    """Stop strings and sampling parameters from a task's `generation_kwargs`. Raises ValueError for other settings."""
    given = dict(normalize_gen_kwargs(settings, NEW_TOKENS))
    stops = tuple(dict.fromkeys(stop for stop in given.pop("until") if stop))
    sampled, temperature = given.pop("do_sample"), float(given.pop("temperature", 0.0))
    fields = {"max_new_tokens": given.pop("max_gen_toks"), "temperature": temperature if sampled else 0.0, "seed": seed}
    fields |= {name: kind(given.pop(name)) for name, kind in (("top_p", float), ("top_k", int)) if name in given}
    if given.get("num_beams") == 1:
        del given["num_beams"]  # one beam is no beam search
    for name in given:
        if name in STATEFUL:
            refuse_stateful(name, given[name])
            continue
        raise ValueError(f"generation_kwargs: {name} is not supported; leave it out of the task")
    return stops, SamplingParams(**fields)


def _typed(command: Sequence[str]) -> list[str]:
    """The command as typed. For `python -m MODULE`, sys.argv has only the module's file."""
    is_own = Path(command[0]) == Path(__file__)
    return [*(("python", "-m", "jaxspec.evaluate.harness") if is_own else command[:1]), *command[1:]]


@functools.cache
def _warn(text: str) -> None:
    """A warning, once for all requests."""
    say(f"warning: {text}")


def _say_shortened(count: int) -> None:
    if count:
        say(f"{count} contexts are too long for the model: they are shortened at the beginning")


def main() -> None:
    """The harness's command line, with `--model jaxspec` registered. A ValueError becomes one sentence."""
    expect_no_chip()
    give_threads()
    register_model(NAME)(Jaxspec)
    try:
        cli_evaluate()
    except ValueError as error:  # of an argument, the checkpoint or a task
        if os.environ.get("JAXSPEC_TRACEBACK"):
            raise
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
