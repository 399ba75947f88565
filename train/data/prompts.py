"""Prompts that a target continues: from a file, or from open data: cut from text, or first turns of conversations."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxspec.checkpoint.checksums import fingerprint
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.requests import encode
from jaxspec.evaluate.questions import read_questions
from jaxspec.host.terminal import say
from jaxspec.train.data import records
from jaxspec.train.data.encoding import warn_of_special_names
from jaxspec.train.data.records import ASSISTANT, SYSTEM, USER, BadRecord, Conversation, Message, usable
from jaxspec.train.data.text import Document
from jaxspec.train.decoding_options import Calibrator, SkipSearch
from jaxspec.train.options import Data

_CHARACTERS_A_TOKEN = 32  # characters read for each token; if tokens are longer, a prompt has fewer of them
_HALF = "\ufffd"  # the decoded form of a partial character


def load_with_tokenizer(target: Path, dtype: str | None, mesh: Mesh | None = None) -> Checkpoint:
    """Loads the target. Raises ValueError if it has no tokenizer."""
    model = load(target, dtype, mesh)
    if model.tokenizer is None:
        raise ValueError(f"{model.path} has no tokenizer, so it cannot generate text")
    return model


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A text that the target continues, as token ids; and the conversation that they encode, if it is one."""

    tokens: list[int]
    messages: tuple[Message, ...] = ()


def load_prompts(
    file: Path | None, data: Data, model: Checkpoint, count: int, length: int, seed: int, chat: bool = False
) -> list[Prompt]:
    """The first turns of the first `count` questions in a file; without one, `count` pieces of the data.

    Args:
        chat: format the questions with the chat template. Without a file, prompts are the first turns of the data's
            conversations in random order. Those that are held out, or leave no room for a token, are passed over.

    Raises:
        ValueError: the file cannot be read, the data has no such prompts, a prompt leaves no room for a new token, the
            target has no chat template, or with `data.strict` the template does not take a conversation.
    """
    if chat and file is None:
        return _first_turns(data, model, count, seed)
    if file is None:
        texts: list[Any] = cut_prompts(records.read(data.data, data.strict), model.tokenizer, count, length, seed)
    else:
        texts = [question.turns[0] for question in read_questions(file, count)]
    encoded, room = encode(texts, model, chat, data.format), model.config.model.usable_length
    for i, prompt in enumerate(encoded):
        if len(prompt) >= room:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens and the model has {room} positions, so there is no room for new "
                "tokens; shorten the prompt, or lower --prompt-tokens"
            )
    messages = [(*system_of(data.format), Message(USER, text)) if chat else () for text in texts]
    return list(map(Prompt, encoded, messages))


def system_of(chat_format: ChatFormat) -> tuple[Message, ...]:
    """The message with the system prompt, if there is one."""
    return () if chat_format.system is None else (Message(SYSTEM, chat_format.system),)


def _first_turns(data: Data, model: Checkpoint, count: int, seed: int) -> list[Prompt]:
    """`count` first turns that leave room for a token, or all there are."""
    kept, _ = records.split(records.read(data.data, data.strict))
    conversations = [each for each in kept if isinstance(each, Conversation)]
    order, results, fitting = np.random.default_rng(seed).permutation(len(conversations)), list[Any](), 0
    for conversation in (conversations[number] for number in order):
        if fitting == count:
            break
        begin = conversation.messages[: [message.role for message in conversation.messages].index(ASSISTANT)]
        try:
            (tokens,) = encode([[dataclasses.asdict(message) for message in begin]], model, True, data.format)
        except ValueError as error:
            if error.__cause__ is None:  # not raised by the template, so it is about the whole run
                raise
            reason = f"the chat template does not take it: {' '.join(str(error.__cause__).split())}"
            results.append(BadRecord(conversation.name, reason))
            continue
        if len(tokens) < model.config.model.usable_length:
            results.append(Prompt(tokens, (*system_of(data.format), *begin)))
            fitting += 1
    if not (prompts := usable(results, data.strict)):
        raise ValueError(
            f"--chat takes the first turns of conversations, and {data.data} has none that fit; leave --chat out for "
            "plain text"
        )
    return prompts


def hash_of(prompts: Sequence[Prompt | Request]) -> dict[str, str]:
    """What a run depends on beside its settings: its prompts."""
    return {"the hash of the prompts": fingerprint([np.array(prompt.tokens, np.int32) for prompt in prompts])}


def greedy_requests(model: Checkpoint, settings: Calibrator | SkipSearch, file: Path | None = None) -> list[Request]:
    """Requests for greedy text after each different prompt of the command; see `load_prompts`, which also raises.

    A text is at most as long as the model's positions permit.
    """
    shared = settings.samples, settings.prompt_tokens, settings.seed, settings.chat
    prompts = load_prompts(file, settings.data, model, *shared)
    # Equal prompts have equal texts, of which one could be held out and another fitted.
    different = dict.fromkeys(tuple(prompt.tokens) for prompt in prompts)
    if len(different) < len(prompts):
        say(f"{len(different)} of {len(prompts)} prompts are left without duplicates; for more, give more text")
    left = lambda prompt: min(settings.max_new_tokens, model.config.model.usable_length - len(prompt))
    return [Request(list(prompt), SamplingParams(max_new_tokens=left(prompt))) for prompt in different]


def cut_prompts(texts: records.Texts, tokenizer: Any, count: int, length: int, seed: int) -> list[list[int]]:
    """Token ids of `count` pieces of the data, each of up to `length` tokens and usually BOS.

    A piece starts with the line of a random character of the training text; all are equally likely. The first
    pieces are the same for any `count`. A special token's name in the text is ordinary text.

    Raises ValueError if there are conversations.
    """
    kept, _ = records.split(texts)
    documents = [each for each in kept if isinstance(each, Document)]
    if len(documents) < len(kept):
        raise ValueError(
            "prompts can be cut only from plain text, but the data holds conversations; --chat takes their first turns"
        )
    warn_of_special_names(tokenizer, documents)
    ends = np.cumsum([len(each.text) for each in documents])
    pieces = []
    for place in np.random.default_rng(seed).integers(ends[-1], size=count):
        number = int(np.searchsorted(ends, place, side="right"))
        text = documents[number].text
        line = text.rfind("\n", 0, int(place - ends[number]) + len(text)) + 1
        pieces.append(text[line : line + _CHARACTERS_A_TOKEN * length])

    # A cut may split a character. Its remainder is removed, and the rest is encoded again as text.
    texts = [tokenizer.decode(tokens[:length]).strip(_HALF) for tokens in tokenizer.encode_as_text(pieces, False)]
    return tokenizer.encode_as_text(texts)
