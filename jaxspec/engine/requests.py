"""From the arguments of a call to the requests that it makes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.prompts import Prompt, encode, refuse_stateful
from jaxspec.host.arguments import one_each


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    sampling: SamplingParams = SamplingParams(),
    seeds: Sequence[int] | None = None,
    chat: bool = False,
    truncate: Literal["left"] | None = None,
    **fields: Any,
) -> list[Request]:
    """The requests that a call of `Engine.generate` with these settings makes, one a prompt.

    Args:
        sampling: how every text is drawn.
        seeds: one a prompt, which then draws from fold_in(key(seed), 0), wherever it stands.
        chat: put each prompt through the tokenizer's chat template.
        truncate: `left` keeps of a prompt that is too long the last tokens that leave room for `max_new_tokens` (its
            BOS goes too); None refuses it.
        fields: those of SamplingParams by name, in place of `sampling`'s: one value, or one a prompt
            (a sequence or an array). Settings such as repetition_penalty may be given where they do nothing (1.0).

    Raises:
        ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
    """
    if truncate not in (None, "left"):
        raise ValueError(f'truncate must be None or "left", not {truncate!r}')
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    for name in fields.keys() - known:
        refuse_stateful(name, fields[name])
    listed = encode(prompts, model, chat)
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
                f"prompt {i} has {len(tokens)} tokens; with max_new_tokens={own.max_new_tokens} that is beyond the "
                f"{room} positions of this model: {advice if left > 0 else 'ask for fewer tokens'}"
            )
        requests.append(Request(tokens[-left:], own, index=0 if seeds is not None else i))
    return requests
