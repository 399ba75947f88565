"""From what a user passes as a prompt to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.checkpoint.loading import Checkpoint

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages `[{"role": …, "content": …}, …]`."""

STATEFUL = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "bad_words_ids",
    "logits_processor",
    "min_new_tokens",
    "min_length",
    "forced_eos_token_id",
)
"""Processors that change the logits by what was generated before, or in ways that the draft does not know."""


def stateful_refusal(name: str) -> Exception:
    """The error for an argument that `generate` does not take."""
    if name not in STATEFUL:
        return TypeError(f"generate() got an unexpected keyword argument {name!r}")
    return ValueError(
        f"{name} is refused: it changes the target's distribution with the text before it, so that drafted and plain "
        "text would differ; leave it out"
    )


def encode(prompts: Prompt | Sequence[Prompt], model: Checkpoint, chat: bool) -> list[list[int]]:
    """Token ids of every prompt, each at least one token long.

    Raises:
        ValueError: no prompts, an empty one where there is no BOS, an id outside the vocabulary, or text or messages
            where the checkpoint lacks a tokenizer or chat template.
    """
    listed = [prompts] if _is_one(prompts) else list(prompts)
    if not listed:
        raise ValueError("there are no prompts")
    return [_encode_one(i, prompt, model, chat) for i, prompt in enumerate(listed)]


def _is_one(prompts: Any) -> bool:
    """Whether this is a single prompt: text, token ids, or one conversation."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | np.integer | Mapping))


def _encode_one(index: int, prompt: Any, model: Checkpoint, chat: bool) -> list[int]:
    tokenizer, vocab_size = model.tokenizer, model.config.model.vocab_size
    if not isinstance(prompt, str) and not (len(prompt) > 0 and isinstance(prompt[0], Mapping)):
        tokens = [int(token) for token in prompt]
    elif tokenizer is None:
        raise ValueError(f"{model.path} has no tokenizer, so prompt {index} must be a list of token ids")
    elif isinstance(prompt, str) and not chat:
        tokens = tokenizer(prompt)["input_ids"]
    else:
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {model.path} has no chat template; pass plain prompts, without chat")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]  # the template wrote the BOS, if there is one
    if not tokens:
        if model.config.bos is None:
            raise ValueError(f"prompt {index} is empty and the checkpoint names no BOS token to start from")
        tokens = [model.config.bos]
    if outside := [token for token in tokens if not 0 <= token < vocab_size]:
        raise ValueError(f"prompt {index} holds token {outside[0]}, outside the vocabulary of {vocab_size}")
    return list(tokens)
