"""Earlier occurrences of a text's last tokens: what followed them, and how often the text continued in the same way."""

import dataclasses

import chex
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.tree import take

NO_TOKEN = -1
TRUST = 4.0
"""Weight of the prior expectation, in comparisons."""


@chex.dataclass(frozen=True)
class Continuation:
    """The tokens that followed the longest earlier match of the last tokens; among equal ones, the latest."""

    token: Int[Array, "B ahead"]
    matched: Int[Array, " B"]  # length of the match; 0: there is none, and `token` has no meaning


@chex.dataclass(frozen=True)
class MatchState:
    """For matches of 1, 2, … tokens: how often the text continued as before; and this round's guess."""

    compared: Int[Array, "B matched"]  # number of comparisons, by match length
    followed: Int[Array, "B matched"]  # number of them in which the same token followed
    ahead: Continuation | None = None  # the guess; None outside drafting


def unmatched(batch: int, longest: int) -> MatchState:
    """Initial state of `batch` sequences, for matches of up to `longest` tokens."""
    none = jnp.zeros((batch, longest), jnp.int32)
    return MatchState(compared=none, followed=none)


def last_tokens(text: Int[Array, "B S"], length: Int[Array, " B"], count: int) -> Int[Array, "B 1 count"]:
    """The last `count` of the first `length` tokens, last first; NO_TOKEN before the beginning of the text."""
    at = length[:, None] - 1 - jnp.arange(count)
    return jnp.where(at >= 0, take(text, at), NO_TOKEN)[:, None]


def match_lengths(
    text: Int[Array, "B S"], length: Int[Array, " B"], ends: Int[Array, "B W longest"]
) -> Int[Array, "B W S"]:
    """For each committed position, the number of tokens up to it that equal the last tokens of each of W texts.

    It is 0 at the last committed token, which has no next token yet, and after it. `ends` are the last tokens of each
    text, last first; NO_TOKEN if a text is shorter.
    """
    longest, size = ends.shape[-1], text.shape[1]
    before = jnp.pad(text, [(0, 0), (longest - 1, 0)], constant_values=NO_TOKEN - 1)
    agrees = jnp.broadcast_to((jnp.arange(size) < length[:, None] - 1)[:, None], (*ends.shape[:2], size))
    matched = jnp.zeros(agrees.shape, jnp.int32)
    for i in range(longest):
        start = longest - 1 - i
        agrees &= before[:, None, start : start + size] == ends[..., i, None]
        matched += agrees
    return matched


def continuation(text: Int[Array, "B S"], length: Int[Array, " B"], longest: int, ahead: int) -> Continuation:
    """The `ahead` tokens after the longest earlier match of up to `longest` of the last tokens.

    If fewer tokens follow the match, they are repeated: the text is assumed to be periodic.
    """
    size = text.shape[1]
    matched = match_lengths(text, length, last_tokens(text, length, longest))[:, 0]
    best = (matched * size + jnp.arange(size, dtype=jnp.int32)).max(axis=1)  # the longest, then the latest
    most = best // size
    at = jnp.where(most > 0, best % size, 0)
    period = jnp.where(most > 0, length - 1 - at, 1)
    return Continuation(token=take(text, at[:, None] + 1 + jnp.arange(ahead) % period[:, None]), matched=most)


def chance(state: MatchState, matched: Int[Array, "B *W"], share: float = 1.0) -> Float[Array, "B *W"]:
    """The estimated probability that the token after a match of this length follows again; 0 without a match.

    It is the rate in this text so far. The prior of a match of m tokens is `share` * m / (m + 2).
    """
    longest = state.followed.shape[1]
    lengths = jnp.arange(1, longest + 1)
    expected = share * (lengths / (lengths + jnp.float32(2)))
    rate = (state.followed + TRUST * expected) / (state.compared + TRUST)
    flat = matched.reshape(len(matched), -1)
    return jnp.where(flat > 0, take(rate, jnp.clip(flat - 1, 0, longest - 1)), 0.0).reshape(matched.shape)


def learn(state: MatchState, next_token: Int[Array, "B T"], count: Int[Array, " B"]) -> MatchState:
    """The state after a round that committed the first `count` of these tokens. Chunks of a prompt do not change it.

    Each token that equals the guess makes the match one token longer.
    """
    guess = state.ahead
    if guess is None:
        return state
    most, longest = min(next_token.shape[1], guess.token.shape[1]), state.followed.shape[1]
    place = jnp.arange(most)
    followed = (next_token[:, :most] == guess.token[:, :most]) & (place < count[:, None])
    before = jnp.cumprod(jnp.pad(followed, [(0, 0), (1, 0)], constant_values=1), axis=1)  # all earlier ones did
    compared = (before[:, :-1] > 0) & (place < count[:, None]) & (guess.matched > 0)[:, None]
    bucket = jnp.minimum(guess.matched[:, None] + place, longest)
    in_bucket = bucket[..., None] == jnp.arange(1, longest + 1)
    add = lambda total, counted: total + (in_bucket & counted[..., None]).sum(axis=1, dtype=jnp.int32)
    return dataclasses.replace(
        state, compared=add(state.compared, compared), followed=add(state.followed, compared & followed), ahead=None
    )
