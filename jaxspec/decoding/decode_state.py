"""The complete state of a generation between two rounds."""

import dataclasses
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.drafter import Drafter, Models, Prefix, State
from jaxspec.decoding.round_records import RoundCounts, Trace, more_columns
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.tree import Rows
from jaxspec.model import backend, split_rows
from jaxspec.model import kv_cache as kv


@chex.dataclass(frozen=True)
class DecodeState:
    """The state of a batch between two rounds. Caches have S positions. `tokens` past `length` have no meaning."""

    tokens: Int[Array, "B S"]
    length: Int[Array, " B"]  # committed tokens, the root included
    limit: Int[Array, " B"]  # length at which the budget is spent
    done: Bool[Array, " B"]
    finite: Bool[Array, " B"]  # whether every logit that decided a token was finite
    keys: Key[Array, " B"]
    eos: Int[Array, " eos"]  # token ids that end a text, padded with -1
    sampling: Sampling
    cache: tuple[kv.KV, ...]  # the target's; length - 1 positions are valid
    feature: Float[Array, "B D"]  # the target's feature at the last verified position
    drafter: Any
    controller: Any
    round: Int[Array, ""]  # number of rounds so far; refilling a row does not reset it
    history: RoundCounts  # [B R], round i in column i % R; R = S, because each round commits a token
    log_prob: Float[Array, "B S"] | None  # log p of tokens[:, i], given the tokens before
    trace: Trace | None

    @property
    def prefix(self) -> Prefix:
        """The part of the state that drafting and verification read."""
        return Prefix(token=self.tokens, length=self.length, cache=self.cache, unfinished=~self.done)


def margin(spec: Speculation) -> int:
    """Positions past the length that a round may write: the accepted path, and a token that a draft model rereads.

    If positions are split over devices, each device's part is rounded up.
    """
    return spec.builder.depth + 3 + 2 * (split_rows.parts() - 1)


def needs_room(spec: Speculation, state: DecodeState) -> Bool[Array, ""]:
    """Whether an unfinished row has too few positions left for another round."""
    return (jnp.where(state.done, 0, state.length).max() + margin(spec)) > state.tokens.shape[1]


def enlarge(drafter: Drafter, models: Models, state: DecodeState, cache_len: int) -> DecodeState:
    """The same state with caches of `cache_len` positions. Each old cache is deleted as soon as it is replaced."""
    by_token, by_round = (state.tokens, state.log_prob), (state.history, state.trace)
    (tokens, log_prob), (history, trace) = _with_columns(by_token, by_round, cache_len, state.round)
    return dataclasses.replace(
        state,
        tokens=tokens,
        cache=kv.enlarge(state.cache, cache_len),
        drafter=drafter.enlarge(models, state.drafter, cache_len),
        history=history,
        log_prob=log_prob,
        trace=trace,
    )


@partial(jax.jit, static_argnames="cache_len")
def _with_columns(by_token: Any, by_round: Any, cache_len: int, before: Int[Array, ""]) -> tuple[Any, Any]:
    """Arrays of tokens [B S ...], padded with zeros, and of rounds [B R ...], with `cache_len` columns."""
    pad = lambda x: jnp.pad(x, [(0, 0), (0, cache_len - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
    return jax.tree.map(pad, by_token), jax.tree.map(lambda x: more_columns(x, cache_len, before), by_round)


def write_block(rows: Array, block: Array, start: Int[Array, " B"]) -> Array:
    """Writes block [B T ...] to rows [B S ...], row b from column start[b]. Columns past the new length are never read.

    A block that exceeds the row is cut, not shifted as by `dynamic_update_slice`, which would overwrite the end of a
    finished text: its row may have no room for another round (`needs_room`).
    """
    if backend.loops_over_updates():
        return _choose_block(rows, block, start)
    whole = tuple(range(rows.ndim - 1))
    at_row = jax.lax.ScatterDimensionNumbers(whole, inserted_window_dims=(), scatter_dims_to_operand_dims=(0,))
    one = partial(jax.lax.scatter, dimension_numbers=at_row, indices_are_sorted=True, unique_indices=True, mode="drop")
    return jax.vmap(lambda row, new, at: one(row, at[None], new.astype(row.dtype)))(rows, block, start)


def _choose_block(rows: Array, block: Array, start: Int[Array, " B"]) -> Array:
    """`write_block` by selects, column by column."""
    at = (jnp.arange(rows.shape[1]) - start[:, None]).reshape(rows.shape[:2] + (1,) * (rows.ndim - 2))
    for column in range(block.shape[1]):
        rows = jnp.where(at == column, block[:, column : column + 1].astype(rows.dtype), rows)
    return rows


def select_rows(chosen: Rows, these: State, others: State) -> State:
    """The state `these` in the chosen rows, `others` in the remaining ones. Every leaf has B as its first axis."""
    pick = lambda this, other: jnp.where(chosen.reshape(chosen.shape + (1,) * (this.ndim - 1)), this, other)
    return jax.tree.map(pick, these, others)
