"""A shared beginning of prompts, such as worked examples before every question, is prefilled once and then reused."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.decoding.decode_state import DecodeState

KEPT = 2  # prefixes, at most: what all prompts begin with, and what several samples of one do
LOOKED_AT = 32  # waiting prompts


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What reading whole chunks gave.

    Attributes:
        tokens: that were read, and the one after, which drafters look at too.
        read: the target's cache and the drafter's state, a row for each part of the batch.
    """

    tokens: list[int]
    read: tuple[Any, Any]

    @property
    def position(self) -> int:
        """Tokens that were read."""
        return len(self.tokens) - 1

    def begins(self, prompts: Iterable[Sequence[int]]) -> bool:
        """Whether all of these can go on from here."""
        return all(prompt[: len(self.tokens)] == self.tokens for prompt in prompts)


def kept(state: DecodeState, tokens: Sequence[int], position: int) -> Prefix:
    """A copy of a state whose rows have read prompts up to here, which begin alike, with these tokens."""
    return Prefix(list(tokens[: position + 1]), copied((state.cache, state.drafter)))


def go_on(state: DecodeState, prefix: Prefix) -> DecodeState:
    """A new state, nothing of whose prompts was read, as if the prefix had been. The prefix stays."""
    cache, drafter = copied(prefix.read)
    return dataclasses.replace(state, cache=cache, drafter=drafter)


@jax.jit
def copied(arrays: Any) -> Any:
    """The same values in arrays of their own: those of a state are donated to what reads on."""
    return jax.tree.map(jnp.copy, arrays)


def worth_keeping(prompts: Sequence[Sequence[int]], waiting: Iterable[Sequence[int]], chunk: int) -> list[int]:
    """Up to which positions, of the prompts that are about to be read, waiting ones can share what is read.

    The longest that the next one shares, and the next that a later one does.
    """
    found: list[int] = []
    for other in islice(waiting, LOOKED_AT):
        position = min(shared(prompt, other, chunk) for prompt in prompts)
        if 0 < position < min(found, default=position + 1):
            found.append(position)
        if len(found) == KEPT:
            break
    return found


def shared(one: Sequence[int], other: Sequence[int], chunk: int) -> int:
    """Tokens of the whole chunks that both begin with; after them they have one more in common."""
    at = 0
    while len(one) > at + chunk and one[at : at + chunk + 1] == other[at : at + chunk + 1]:
        at += chunk
    return at
