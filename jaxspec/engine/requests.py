"""From the arguments of a call to the requests that it makes."""

from collections.abc import Sequence
from typing import Any

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.prompts import Prompt, encode, stateful_refusal


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = SamplingParams.max_new_tokens,
    temperature: float | Sequence[float] = SamplingParams.temperature,
    top_k: int | Sequence[int] = SamplingParams.top_k,
    top_p: float | Sequence[float] = SamplingParams.top_p,
    seed: int = SamplingParams.seed,
    seeds: Sequence[int] | None = None,
    chat: bool = False,
    **unsupported: Any,
) -> list[Request]:
    """The requests that a call of `Engine.generate` with these settings makes, one a prompt.

    Args:
        temperature, top_k, top_p: one value, or one a prompt. Temperature 0 is greedy; top_k 0 and top_p 1 are off.
        seed: prompt i draws from fold_in(key(seed), i), whatever the batch; `seeds` gives each prompt its own.
        chat: put each prompt through the tokenizer's chat template.

    Raises:
        ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
    """
    if unsupported:
        raise stateful_refusal(next(iter(unsupported)))
    listed = encode(prompts, model, chat)
    each = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed if seeds is None else seeds}
    spread = {name: _one_each("seeds" if name == "seed" else name, value, len(listed)) for name, value in each.items()}
    room, requests = model.config.model.usable_length, []
    for i, tokens in enumerate(listed):
        own: Any = {name: values[i] for name, values in spread.items()}
        sampling = SamplingParams(max_new_tokens=max_new_tokens, **own)
        if len(tokens) + max_new_tokens > room:
            raise ValueError(
                f"prompt {i} has {len(tokens)} tokens; with max_new_tokens={max_new_tokens} that is beyond the "
                f"{room} positions of this model: shorten the prompt or ask for fewer tokens"
            )
        requests.append(Request(tokens, sampling, index=0 if seeds is not None else i))
    return requests


def _one_each(name: str, value: Any, number: int) -> list:
    if isinstance(value, Sequence):
        if len(value) != number:
            raise ValueError(f"{name} has {len(value)} values for {number} prompts; give one, or one a prompt")
        return list(value)
    return [value] * number
