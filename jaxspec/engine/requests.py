"""From the arguments of a call to the requests that it makes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.prompts import Prompt, encode, stateful_refusal


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    sampling: SamplingParams = SamplingParams(),
    seeds: Sequence[int] | None = None,
    chat: bool = False,
    **fields: Any,
) -> list[Request]:
    """The requests that a call of `Engine.generate` with these settings makes, one a prompt.

    Args:
        sampling: how every text is drawn.
        seeds: one a prompt, which then draws from fold_in(key(seed), 0), wherever it stands.
        chat: put each prompt through the tokenizer's chat template.
        fields: those of SamplingParams by name, in place of `sampling`'s: one value, or one a prompt.

    Raises:
        ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
    """
    for name in fields:
        if name not in {field.name for field in dataclasses.fields(SamplingParams)}:
            raise stateful_refusal(name)
    listed = encode(prompts, model, chat)
    spread = {name: _one_each(name, value, len(listed)) for name, value in fields.items()}
    if seeds is not None:
        spread["seed"] = _one_each("seeds", seeds, len(listed))
    room, requests = model.config.model.usable_length, []
    for i, tokens in enumerate(listed):
        own = dataclasses.replace(sampling, **{name: values[i] for name, values in spread.items()})
        if len(tokens) + own.max_new_tokens > room:
            raise ValueError(
                f"prompt {i} has {len(tokens)} tokens; with max_new_tokens={own.max_new_tokens} that is beyond the "
                f"{room} positions of this model: shorten the prompt or ask for fewer tokens"
            )
        requests.append(Request(tokens, own, index=0 if seeds is not None else i))
    return requests


def _one_each(name: str, value: Any, number: int) -> list:
    if isinstance(value, Sequence):
        if len(value) != number:
            raise ValueError(f"{name} has {len(value)} values for {number} prompts; give one, or one a prompt")
        return list(value)
    return [value] * number
