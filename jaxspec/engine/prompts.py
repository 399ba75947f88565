"""Converts a user's prompts to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.host.arguments import integer

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
    """Raises an error for an argument that `generate` does not support, unless its value has no effect.

    Raises:
        TypeError: there is no such argument.
        ValueError: the argument is in `STATEFUL`, and its value has an effect.
    """
    if name not in STATEFUL:
        raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
    if value is not None and value != STATEFUL[name]:
        raise ValueError(
            f"{name} is not supported: it makes the target's distribution depend on the whole text so far, which "
            "verification does not compute; leave it out"
        )


def encode(
    prompts: Prompt | Sequence[Prompt], model: Checkpoint, chat: bool, chat_format: ChatFormat = ChatFormat()
) -> list[list[int]]:
    """Token ids of every prompt, each at least one token long.

    Args:
        chat: format text with the chat template, too, and not only messages.

    Raises:
        ValueError: there are no prompts, a prompt is empty and there is no BOS, an id is outside the vocabulary, the
            checkpoint lacks the tokenizer or chat template that a prompt needs, or `chat_format` does not apply.
    """
    if not (found := listed(prompts)):
        raise ValueError("there are no prompts")
    return [_encode_one(i, prompt, model, chat, chat_format) for i, prompt in enumerate(found)]


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
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
        return True
    return len(prompts) > 0 and not isinstance(_unpacked(prompts[0]), Sequence)


def _encode_one(index: int, prompt: Any, model: Checkpoint, chat: bool, chat_format: ChatFormat) -> list[int]:
    tokenizer, vocab_size = model.tokenizer, model.config.model.vocab_size
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise ValueError(
            f"prompt {index} must be text (str), a list of token ids or chat messages, not {type(prompt).__name__}"
        )
    conversation = is_conversation(prompt, chat)
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
        tokens = tokenizer.encode(prompt)
    else:
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {model.path} has no chat template; pass plain prompts, without chat")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        chat_format.check(tokenizer.chat_template)
        try:
            text = chat_format.render(tokenizer, messages)
        except Exception as error:  # a template can raise anything
            raise ValueError(f"the chat template of {model.path} does not take prompt {index}: {error}") from error
        tokens = tokenizer.encode(text, add_special_tokens=False)  # the template adds BOS itself
    if not tokens:
        if model.config.bos is None:
            raise ValueError(f"prompt {index} is empty and the checkpoint names no BOS token to start from")
        tokens = [model.config.bos]
    if outside := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(f"prompt {index} holds token {outside[0]}, outside the vocabulary of {vocab_size}")
    return list(tokens)
