"""From the arguments of a call to the requests that it makes."""

from collections.abc import Sequence
from typing import Any

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import Request
from jaxspec.engine.prompts import Prompt, encode, stateful_refusal


def requests_of(
    model: Checkpoint,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    chat: bool = False,
    **unsupported: Any,
) -> list[Request]:
    """The requests that a call of `Engine.generate` with these settings makes, one a prompt.

    Raises:
        ValueError: an empty prompt without a BOS to stand for it, one that does not fit, or a setting out of range.
    """
    if unsupported:
        raise stateful_refusal(next(iter(unsupported)))
    listed = encode(prompts, model, chat)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    spread = lambda name, value: _one_each(name, value, len(listed))
    requests = [
        Request(tokens, max_new_tokens, *values, index=0 if seeds is not None else i)
        for i, (tokens, *values) in enumerate(
            zip(
                listed,
                spread("temperature", temperature),
                spread("top_k", top_k),
                spread("top_p", top_p),
                spread("seeds", seed if seeds is None else seeds),
                strict=True,
            )
        )
    ]
    room = model.config.model.usable_length
    for i, r in enumerate(requests):
        check_settings(r)
        if len(r.tokens) + r.max_new_tokens > room:
            raise ValueError(
                f"prompt {i} has {len(r.tokens)} tokens; with max_new_tokens={r.max_new_tokens} that is beyond the "
                f"{room} positions of this model: shorten the prompt or ask for fewer tokens"
            )
    return requests


def check_settings(request: Request) -> None:
    """Raises ValueError for a setting out of range."""
    if not 0 <= request.temperature < float("inf"):
        raise ValueError(f"temperature must be 0 or above, not {request.temperature}")
    if not 0 < request.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {request.top_p}")
    if request.top_k < 0:
        raise ValueError(f"top_k must be 0 (no limit) or above, not {request.top_k}")


def _one_each(name: str, value: Any, number: int) -> list:
    if isinstance(value, Sequence):
        if len(value) != number:
            raise ValueError(f"{name} has {len(value)} values for {number} prompts; give one, or one a prompt")
        return list(value)
    return [value] * number
