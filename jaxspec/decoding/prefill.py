"""Prefill: reads the prompts into the caches, in chunks, before the first round."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxspec.decoding.decode_state import DecodeState, write_block
from jaxspec.decoding.drafter import Committed, Drafter, Models
from jaxspec.decoding.loop import FIRST
from jaxspec.decoding.sampling import are_finite, fold, log_prob_of, probabilities, sample
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.backend import TPU_PREFILL_OPTIONS, chosen_options
from jaxspec.model.llama import forward

END = 2**30  # beyond the end of any prompt
FIRST_TOKEN = "first"
"""Named scope of sampling the token after a prompt, which happens in the prompt's last chunk only."""


def prefill(drafter: Drafter, models: Models, state: DecodeState, chunk: int) -> DecodeState:
    """Reads the prompts, `chunk` tokens at a time, and commits the first token of each row.

    Prompts may have different lengths. The cache needs rows for the longest prompt, rounded up to whole chunks, and
    `margin` further rows.
    """
    return read(drafter, models, state, chunk, 0, END)


def read(drafter: Drafter, models: Models, state: DecodeState, chunk: int, begin: int, end: int) -> DecodeState:
    """Reads the chunks of the prompts that start at `begin` to `end` - 1. Both must be multiples of `chunk`, or `END`.

    After the longest prompt is read, the first tokens are committed and the rows are ready for decoding.
    """
    after = _read(drafter, models, _without_strategy(state), chunk, np.int32(begin), np.int32(end))
    return dataclasses.replace(after, controller=state.controller, trace=state.trace)


def compile_prefill(drafter: Drafter, models: Models, state: DecodeState, chunk: int) -> None:
    """Compiles `prefill` for an abstract state on one device, without running it."""
    trace_prefill(drafter, models, state, chunk).lower().compile()


def trace_prefill(drafter: Drafter, models: Models, state: DecodeState, chunk: int) -> Any:
    """Traces `prefill` for abstract, sharded arguments."""
    places = {path: leaf.sharding for path, leaf in jax.tree_util.tree_leaves_with_path(state)}

    def put(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=places[path], weak_type=leaf.weak_type)

    bare = jax.tree_util.tree_map_with_path(put, jax.eval_shape(_without_strategy, state))
    # NumPy scalars, because JAX would put its own on the mesh's devices, which may be absent.
    return _read.trace(drafter, models, bare, chunk, np.int32(0), np.int32(END))


def on_device(abstract: DecodeState, device: Any) -> DecodeState:
    """The abstract state with all arrays on one device, given as a sharding, as the real state will have them.

    Otherwise JAX would compile again for the real state.
    """
    put = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device, weak_type=leaf.weak_type)
    return jax.tree.map(put, abstract)


def _without_strategy(state: DecodeState) -> DecodeState:
    """The part of the state that prefill uses. All builders and controllers share it, and so the compiled program."""
    return dataclasses.replace(state, controller=None, trace=None)


@partial(
    jax.jit,
    static_argnames=("drafter", "chunk"),
    donate_argnames="state",
    compiler_options=chosen_options(TPU_PREFILL_OPTIONS),
)
def _read(
    drafter: Drafter, models: Models, state: DecodeState, chunk: int, begin: Int[Array, ""], end: Int[Array, ""]
) -> DecodeState:
    batch, prompt = state.length.shape[0], state.length
    taps = drafter.taps(models)
    causal = causal_mask(batch, chunk)
    keys = fold(fold(state.keys, prompt), FIRST)

    @jax.named_scope(FIRST_TOKEN)
    def draw_first(feature):
        logits = models.target.logits(feature)
        first = sample(keys, probabilities(logits[:, 0], state.sampling))
        log_prob = None if state.log_prob is None else log_prob_of(logits, first[:, None])[:, 0]
        return first, are_finite(logits[:, 0]), log_prob

    def draw_nothing(feature):
        log_prob = None if state.log_prob is None else jnp.zeros_like(state.log_prob[:, 0])
        return jnp.zeros_like(prompt), state.finite, log_prob

    def read_chunk(carry):
        at, state = carry
        token = jax.lax.dynamic_slice_in_dim(state.tokens, at, chunk, axis=1)
        positions = jnp.broadcast_to(at + jnp.arange(chunk), (batch, chunk))
        start = jnp.full((batch,), at)
        out = forward(models.target, token, positions, causal, state.cache, start, taps=taps)
        ends = (prompt > at) & (prompt <= at + chunk)
        feature = take(out.hidden, jnp.clip(prompt - 1 - at, 0, chunk - 1)[:, None])
        first, finite, first_log_prob = jax.lax.cond(ends.any(), draw_first, draw_nothing, feature)
        old = jnp.take_along_axis(state.tokens, prompt[:, None], axis=1)
        tokens = write_block(state.tokens, jnp.where(ends[:, None], first[:, None], old), prompt)
        count = jnp.clip(prompt - at, 0, chunk)
        committed = Committed(
            start=jnp.where(count > 0, at, prompt + 1),
            count=count,
            token=token,
            next_token=jax.lax.dynamic_slice_in_dim(tokens, at + 1, chunk, axis=1),
            hidden=out.hidden,
            taps=out.taps,
        )
        log_prob = state.log_prob
        if log_prob is not None:
            old = jnp.take_along_axis(log_prob, prompt[:, None], axis=1)
            log_prob = write_block(log_prob, jnp.where(ends[:, None], first_log_prob[:, None], old), prompt)
        return at + chunk, dataclasses.replace(
            state,
            tokens=tokens,
            finite=jnp.where(ends, finite, state.finite),
            cache=kv.append(state.cache, out.nodes, start, after=first),
            feature=jnp.where(ends[:, None], feature[:, 0], state.feature),
            drafter=drafter.observe(models, state.drafter, committed),
            log_prob=log_prob,
        )

    unread = lambda carry: carry[0] < jnp.minimum(prompt.max(), end)
    _, state = jax.lax.while_loop(unread, read_chunk, (begin, state))
    first = jnp.take_along_axis(state.tokens, prompt[:, None], axis=1)
    begun = ~state.done & (prompt.max() <= end)
    length = prompt + (begun & (prompt < state.limit))  # with a budget of 0 the first token is dropped too
    done = state.done | (begun & ((first == state.eos).any(axis=1) | (length >= state.limit)))
    return dataclasses.replace(state, length=length, done=done)
