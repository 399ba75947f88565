"""A prompt with its settings, checked, and a batch of them put on the device."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import decode, sharding
from jaxspec.hosts import fetch, put_like
from jaxspec.loading import Checkpoint
from jaxspec.prompts import Prompt, encode, stateful_refusal
from jaxspec.protocols import Models
from jaxspec.sampling import Sampling

SMALLEST_CACHE = 64
FIRST_STAGE = 512  # new tokens that the first cache has room for; it grows as the text does
LARGEST_CHUNK = 512


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, ready to run."""

    tokens: list[int]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    index: int  # in the call; the prompt draws from fold_in(key(seed), index)


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


def shapes(spec: decode.Speculation, requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens a chunk of prefill and rows of the first cache, in buckets, so that few programs are compiled."""
    longest = max(len(r.tokens) for r in requests)
    chunk = min(LARGEST_CHUNK, _power_of_two(longest, 16))
    whole = -(-longest // chunk) * chunk
    budget = max(r.max_new_tokens for r in requests)
    rows = _power_of_two(max(whole, longest + min(budget, FIRST_STAGE)) + decode.margin(spec), SMALLEST_CACHE)
    return chunk, rows


def start(
    spec: decode.Speculation, models: Models, requests: Sequence[Request], eos: Sequence[int], rows: int
) -> decode.DecodeState:
    """Puts a batch of requests on the device, or on the current mesh.

    The batch is filled up with rows that are done: to a power of two, which the mesh's axis `data` must divide.
    """
    mesh = jax.sharding.get_abstract_mesh()
    batch = _power_of_two(len(requests), 1)
    batch += -batch % mesh.shape.get("data", 1)
    padded = [*requests, *[Request([0], 1, 0.0, 0, 1.0, 0, 0)] * (batch - len(requests))]
    tokens = np.zeros((batch, rows), np.int32)
    for row, request in enumerate(padded):
        tokens[row, : len(request.tokens)] = request.tokens
    column = lambda read, dtype: jnp.asarray([read(r) for r in padded], dtype)
    lengths = column(lambda r: len(r.tokens), jnp.int32)
    seeds, indices = column(lambda r: r.seed % 2**32, jnp.uint32), column(lambda r: r.index, jnp.uint32)
    build = decode.new_state if mesh.empty else sharding.new_state
    return build(
        spec,
        models,
        tokens=jnp.asarray(tokens),
        length=lengths,
        limit=lengths + column(lambda r: r.max_new_tokens, jnp.int32),
        done=jnp.arange(batch) >= len(requests),
        keys=jax.vmap(lambda seed, index: jax.random.fold_in(jax.random.key(seed), index))(seeds, indices),
        eos=jnp.asarray([*eos, *[-1] * (-len(eos) % 4 or 4 * (not eos))], jnp.int32),  # few shapes, few compilations
        sampling=Sampling(
            temperature=column(lambda r: r.temperature, jnp.float32),
            top_k=column(lambda r: r.top_k, jnp.int32) if any(r.top_k for r in requests) else None,
            top_p=column(lambda r: r.top_p, jnp.float32) if any(r.top_p < 1 for r in requests) else None,
        ),
    )


def take_up(controller: Any, learnt: Sequence[Any]) -> Any:
    """A controller's state of B rows, of which the first go on from what was learnt, where it is not None."""
    state = jax.tree.map(np.array, fetch(controller))
    for row, known in enumerate(learnt):
        if known is not None:
            for leaf, value in zip(jax.tree.leaves(state), jax.tree.leaves(known), strict=True):
                leaf[row] = value
    return jax.tree.map(put_like, state, controller)


def _one_each(name: str, value: Any, number: int) -> list:
    if isinstance(value, Sequence):
        if len(value) != number:
            raise ValueError(f"{name} has {len(value)} values for {number} prompts; give one, or one a prompt")
        return list(value)
    return [value] * number


def _power_of_two(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
