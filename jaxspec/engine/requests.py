"""Converts the arguments of a call to requests."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.prompts import Prompt, encode, refuse_stateful
from jaxspec.host.arguments import one_each


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    sampling: SamplingParams = SamplingParams(),
    seeds: Sequence[int] | None = None,
    chat: bool = False,
    chat_args: Mapping[str, Any] | None = None,
    system: str | None = None,
    truncate: Literal["left"] | None = None,
    **fields: Any,
) -> list[Request]:
    """The requests of a call of `Engine.generate` with these settings, one per prompt.

    Args:
        sampling: sampling parameters of all prompts.
        seeds: one per prompt. A prompt with seed s uses fold_in(key(s), 0), whatever its index.
        chat: format each prompt with the tokenizer's chat template.
        chat_args: arguments of the chat template by name, such as {"enable_thinking": False}.
        system: a system prompt before each conversation.
        truncate: `left` cuts a prompt that is too long from the left, its BOS included, so that `max_new_tokens` still
            fit. None: such a prompt is an error.
        fields: fields of SamplingParams by name, which replace those of `sampling`: one value, or one per prompt (a
            sequence or an array). Settings such as repetition_penalty may be given with their neutral value (1.0).

    Raises:
        ValueError: a prompt is empty and there is no BOS, it is too long, a setting is out of range, or the chat
            template does not take an argument or the system prompt.
    """
    if truncate not in (None, "left"):
        raise ValueError(f'truncate must be None or "left", not {truncate!r}')
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    for name in fields.keys() - known:
        refuse_stateful(name, fields[name])
    listed = encode(prompts, model, chat, ChatFormat({} if chat_args is None else chat_args, system))
    spread = {name: one_each(name, value, len(listed)) for name, value in fields.items() if name in known}
    if seeds is not None:
        spread["seed"] = one_each("seeds", seeds, len(listed))
    room, requests = model.config.model.usable_length, []
    for i, tokens in enumerate(listed):
        own = dataclasses.replace(sampling, **{name: values[i] for name, values in spread.items()})
        left = room - own.max_new_tokens
        if len(tokens) > left and (truncate is None or left < 1):
            advice = "shorten the prompt, ask for fewer tokens, or leave out its beginning with truncate left"
            raise ValueError(
                f"prompt {i} has {len(tokens)} tokens; with max_new_tokens={own.max_new_tokens} that exceeds the "
                f"{room} positions of this model: {advice if left > 0 else 'ask for fewer tokens'}"
            )
        requests.append(Request(tokens[-left:], own, index=0 if seeds is not None else i))
    return requests
