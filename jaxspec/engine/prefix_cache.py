"""Prefilled beginnings of prompts that later prompts reuse: of one call, and of the turns of a conversation."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.decoding.decode_state import DecodeState
from jaxspec.engine.program import Program
from jaxspec.model import kv_cache as kv

KEPT = 2  # most stored prefixes: one shared by all prompts, and one by several samples of the same prompt
LOOKED_AT = 32  # number of waiting prompts that are compared


@dataclasses.dataclass(frozen=True)
class CachedPrefix:
    """The result of prefilling whole chunks.

    Attributes:
        tokens: the tokens read, and the next one, which some drafters read too.
        state: the target's cache and the drafter's state, with one row for each part of the batch.
    """

    tokens: list[int]
    state: tuple[Any, Any]

    @property
    def position(self) -> int:
        """Number of tokens read."""
        return len(self.tokens) - 1

    def begins(self, prompts: Iterable[Sequence[int]]) -> bool:
        """Whether all of these prompts begin with the prefix."""
        return all(prompt[: len(self.tokens)] == self.tokens for prompt in prompts)


def kept(state: DecodeState, tokens: Sequence[int], position: int) -> CachedPrefix:
    """The prefix of a state whose rows have all read the same first `position` tokens; its arrays are copies."""
    return CachedPrefix(list(tokens[: position + 1]), copied((state.cache, state.drafter)))


def go_on(state: DecodeState, prefix: CachedPrefix) -> DecodeState:
    """A state before prefill, as if it had read the prefix. The prefix itself stays usable."""
    cache, drafter = copied(prefix.state)
    return dataclasses.replace(state, cache=cache, drafter=drafter)


@jax.jit
def copied(arrays: Any) -> Any:
    """Copies of the arrays, because those of a state are donated when prefill continues."""
    return jax.tree.map(jnp.copy, arrays)


def worth_keeping(prompts: Sequence[Sequence[int]], waiting: Iterable[Sequence[int]], chunk: int) -> list[int]:
    """The lengths of the prefixes to store while `prompts` are read, in tokens: multiples of `chunk`, descending.

    Each is a prefix that all `prompts` share with a waiting prompt. The first is the next waiting prompt's, and shorter
    ones follow for later prompts, `KEPT` at most.
    """
    positions: list[int] = []
    for other in islice(waiting, LOOKED_AT):
        position = min(shared(prompt, other, chunk) for prompt in prompts)
        if 0 < position < min(positions, default=position + 1):
            positions.append(position)
        if len(positions) == KEPT:
            break
    return positions


def shared(one: Sequence[int], other: Sequence[int], chunk: int) -> int:
    """Number of shared tokens at the beginning, in whole chunks, such that the next token is shared too."""
    at = 0
    while len(one) > at + chunk and one[at : at + chunk + 1] == other[at : at + chunk + 1]:
        at += chunk
    return at


@dataclasses.dataclass
class PromptMemory:
    """The prefilled chunks of the last prompt, which the next prompt reuses if it begins with the same tokens.

    Only whole chunks from prefill are stored, and no rows from decoding. So the text is bit-identical to that after a
    full prefill.

    Attributes:
        prefix: the stored chunks; None before the first prompt.
        cache_len: length of its caches; the next session needs at least as many.
        reused: tokens of the last prompt that were reused.
    """

    prefix: CachedPrefix | None = None
    cache_len: int = 0
    reused: int = 0

    def prefill(self, program: Program, state: DecodeState, tokens: Sequence[int], chunk: int) -> DecodeState:
        """Prefill of one prompt, starting where it differs from the last one.

        Args:
            state: before prefill, with the prompt in each row, and caches of at least `cache_len` positions.
            tokens: the prompt.
        """
        cache_len, prefix = state.tokens.shape[1], self.prefix
        self.prefix, self.reused = None, 0  # enlarging deletes its arrays
        if prefix is not None and prefix.position % chunk == 0 and prefix.begins([tokens]):
            self.reused = prefix.position
            state = go_on(state, _enlarged(program, prefix, cache_len) if cache_len > self.cache_len else prefix)
        end = (len(tokens) - 1) // chunk * chunk
        if end > self.reused:
            state = program.read(state, chunk, self.reused, end)
        if end:
            self.prefix, self.cache_len = kept(state, tokens, end), cache_len
        return program.read(state, chunk, end, len(tokens))


def _enlarged(program: Program, prefix: CachedPrefix, cache_len: int) -> CachedPrefix:
    (cache, state), drafter = prefix.state, program.spec.drafter
    larger = kv.enlarge(cache, cache_len), drafter.enlarge(program.models, state, cache_len)
    return dataclasses.replace(prefix, state=larger)
