"""Converts a user's prompts and settings to requests."""

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import jax
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.host.arguments import integer, one_each
from jaxspec.host.terminal import say

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages `[{"role": …, "content": …}, …]`."""

STATEFUL: dict[str, Any] = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "bad_words_ids": None,
    "logits_processor": None,
    "min_new_tokens": 0,
    "min_length": 0,
    "forced_eos_token_id": None,
}
"""Options of transformers that change the logits depending on the text so far, with the value at which each has no
effect."""


def refuse_stateful(name: str, value: Any) -> None:
    """Raises ValueError for an argument in `STATEFUL` whose value has an effect, TypeError for one not in it."""
    if name not in STATEFUL:
        raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
    if value is not None and value != STATEFUL[name]:
        raise ValueError(
            f"{name} is not supported: it makes the target's distribution depend on the whole text so far, which "
            "verification does not compute; leave it out"
        )


def warn_if_greedy(sampling: SamplingParams) -> None:
    """Warns on stderr of settings that greedy decoding does not use."""
    if sampling.temperature == 0 and (sampling.top_p, sampling.top_k) != (1.0, 0):
        say("warning: top_p and top_k have no effect at temperature 0, which means greedy decoding")


def encode(
    prompts: Prompt | Sequence[Prompt], model: Checkpoint, chat: bool, chat_format: ChatFormat = ChatFormat()
) -> list[list[int]]:
    """Token ids of every prompt, each at least one token long. With `chat`, text is formatted as messages are.

    Raises ValueError if there are no prompts, a prompt is empty and there is no BOS, an id is outside the vocabulary,
    the checkpoint lacks the tokenizer or chat template that a prompt needs, or `chat` or `chat_format` does not apply.
    """
    if not (several := listed(prompts)):
        raise ValueError("there are no prompts")
    return [_encode_one(i, prompt, model, chat, chat_format) for i, prompt in enumerate(several)]


def listed(prompts: Any) -> list[Any]:
    """One prompt or several, as a list."""
    prompts = _unpacked(prompts)
    return [_unpacked(prompt) for prompt in ([prompts] if _is_one(prompts) else prompts)]


def is_conversation(prompt: Any, chat: bool) -> bool:
    """Whether the chat template formats this prompt."""
    if isinstance(prompt, str):
        return chat
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _unpacked(prompt: Any) -> Any:
    """The prompt, with an array of NumPy or JAX converted to a list."""
    return prompt.tolist() if isinstance(prompt, np.ndarray | np.generic | jax.Array) else prompt


def _is_one(prompts: Any) -> bool:
    """Whether this is a single prompt (text, token ids, or one conversation), or not a sequence at all."""
    if isinstance(prompts, str | bytes | bytearray) or not isinstance(prompts, Sequence):
        return True
    return len(prompts) > 0 and not isinstance(_unpacked(prompts[0]), Sequence)


def _encode_one(index: int, prompt: Any, model: Checkpoint, chat: bool, chat_format: ChatFormat) -> list[int]:
    tokenizer, vocab_size = model.tokenizer, model.config.model.vocab_size
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        raise ValueError(
            f"prompt {index} must be text (str), a list of token ids or chat messages, not {type(prompt).__name__}"
        )
    conversation = is_conversation(prompt, chat)
    if chat and not conversation:
        raise ValueError(
            f"prompt {index} is a list of token ids, which the chat template cannot format: leave out chat, or give "
            "text or messages"
        )
    if chat_format and not conversation:
        raise ValueError(
            f"prompt {index} is not a conversation, so a system prompt and arguments of the chat template do not apply "
            "to it: leave them out, or use --chat (chat=True) with text"
        )
    if not isinstance(prompt, str) and not conversation:
        tokens = [integer(f"a token id of prompt {index}", token) for token in prompt]
    elif tokenizer is None:
        raise ValueError(f"{model.path} has no tokenizer, so prompt {index} must be a list of token ids")
    elif not conversation:
        tokens = tokenizer.encode(_text(index, prompt))
    else:
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {model.path} has no chat template; pass plain prompts, without chat")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if other := [message for message in messages if not _is_message(message)]:
            raise ValueError(
                f"a message of prompt {index} must have a role and a content, both text, not {reprlib.repr(other[0])}"
            )
        chat_format.check(tokenizer.template_for(dict(chat_format.arguments)))
        try:
            text = chat_format.render(tokenizer, messages)
        except Exception as error:  # a template can raise anything
            raise ValueError(f"the chat template of {model.path} does not take prompt {index}: {error}") from error
        tokens = tokenizer.encode(_text(index, text), add_special_tokens=False)  # the template adds BOS itself
    if not tokens:
        if model.config.bos is None:
            raise ValueError(f"prompt {index} is empty and the checkpoint names no BOS token to start from")
        tokens = [model.config.bos]
    if outside := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(f"prompt {index} holds token {outside[0]}, outside the vocabulary of {vocab_size}")
    return list(tokens)


def _is_message(message: Any) -> bool:
    """Whether this is a message. Templates also accept others, such as rows of a data set, but leave out their text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def _text(index: int, text: Any) -> str:
    """The text. Raises ValueError if it has a surrogate: undecodable bytes on a command line, or half of an emoji."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"prompt {index} holds U+{code:04X} at {error.start}, which is no character") from None
    return text


class GenerateSettings(TypedDict, total=False):
    """Settings of a call of `Engine.generate`.

    Each field of `SamplingParams`, which has their meanings and defaults, is one value for all prompts, or one per
    prompt (a sequence or an array). It replaces the field of `sampling`. Options of transformers such as
    repetition_penalty may be given, too, with the value at which they have no effect.
    """

    sampling: SamplingParams
    """Sampling parameters of all prompts."""
    max_new_tokens: int | Sequence[int] | np.ndarray
    temperature: float | Sequence[float] | np.ndarray
    top_k: int | Sequence[int] | np.ndarray
    top_p: float | Sequence[float] | np.ndarray
    seed: int | Sequence[int] | np.ndarray
    seeds: Sequence[int] | np.ndarray | None
    """One per prompt. A prompt with seed s uses fold_in(key(s), 0), whatever its index."""
    chat: bool
    """Format each prompt, which must be text or messages, with the tokenizer's chat template."""
    chat_args: Mapping[str, Any] | None
    """Arguments of the chat template by name, such as {"enable_thinking": False}."""
    system: str | None
    """A system prompt before each conversation."""
    truncate: Literal["left"] | None
    """`left` cuts a prompt that is too long from the left, its BOS included, so that `max_new_tokens` still fit. None:
    such a prompt is an error."""


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    sampling: SamplingParams = SamplingParams(),
    seeds: Sequence[int] | np.ndarray | None = None,
    chat: bool = False,
    chat_args: Mapping[str, Any] | None = None,
    system: str | None = None,
    truncate: Literal["left"] | None = None,
    **fields: Any,
) -> list[Request]:
    """The requests of a call of `Engine.generate`, one per prompt. The arguments, `fields` too, are `GenerateSettings`.

    Raises ValueError if a prompt is empty and there is no BOS, it is too long, a setting is out of range, or the chat
    template does not take an argument or the system prompt.
    """
    if truncate not in (None, "left"):
        raise ValueError(f'truncate must be None or "left", not {truncate!r}')
    if not isinstance(sampling, SamplingParams):
        raise ValueError(f"sampling must be a jaxspec.SamplingParams, not {sampling!r}")
    if seeds is not None and "seed" in fields:
        raise ValueError("give either seed, one for all prompts, or seeds, one for each prompt")
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    for name in fields.keys() - known:
        refuse_stateful(name, fields[name])
    encoded = encode(prompts, model, chat, ChatFormat({} if chat_args is None else chat_args, system))
    by_prompt = {name: one_each(name, value, len(encoded)) for name, value in fields.items() if name in known}
    if seeds is not None:
        by_prompt["seed"] = one_each("seeds", seeds, len(encoded))
    room, requests = model.config.model.usable_length, []
    for i, tokens in enumerate(encoded):
        own = dataclasses.replace(sampling, **{name: values[i] for name, values in by_prompt.items()})
        left = room - own.max_new_tokens
        if len(tokens) > left and (truncate is None or left < 1):
            advice = "shorten the prompt, ask for fewer tokens, or leave out its beginning with truncate left"
            raise ValueError(
                f"prompt {i} has {len(tokens)} tokens; with max_new_tokens={own.max_new_tokens} that exceeds the "
                f"{room} positions of this model: {advice if left > 0 else 'ask for fewer tokens'}"
            )
        requests.append(Request(tokens[-left:], own, index=0 if seeds is not None else i))
    return requests
