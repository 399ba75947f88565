"""Prefill: reads the prompts into the caches, in chunks, before the first round.

The host calls three programs for each chunk: `embed_chunk`, `run_group` for each group of layers, and `end_chunk`. All
groups share one compiled program, because compiling all layers of a large model together is slow. All methods share
the first two, except that drafters which read layers' inputs have their own `run_group` for groups of several layers.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from jaxspec.decoding.batch import constrain_state
from jaxspec.decoding.decode_state import DecodeState, write_block
from jaxspec.decoding.drafter import Committed, Drafter, Models
from jaxspec.decoding.loop import FIRST
from jaxspec.decoding.sampling import are_finite, fold, log_prob_of, probabilities, sample
from jaxspec.decoding.tree import take
from jaxspec.model import kv_cache as kv
from jaxspec.model import sharding, split_rows
from jaxspec.model.attention import Attend, causal_mask, over_cache, visible
from jaxspec.model.backend import TPU_PREFILL_OPTIONS, chosen_options, layers_together, time_grows_with_tokens
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import STREAM, Layer, look_up, run_layers
from jaxspec.model.rope import rotary

FIRST_TOKEN = "first"
"""Named scope of sampling the token after a prompt, which happens in the prompt's last chunk only."""

Taps = tuple[Float[Array, "B T D"], ...]


def read(drafter: Drafter, models: Models, state: DecodeState, chunk: int, begin: int, end: int) -> DecodeState:
    """Reads the chunks of the prompts that start at `begin` to `end` - 1; `begin` is a multiple of `chunk`.

    With the chunk in which the longest prompt ends, the first token of each row is committed, and the rows are ready
    for decoding. Prompts may have different lengths. The cache needs rows for the longest prompt, rounded up to whole
    chunks, and `margin` further rows.
    """
    after = dataclasses.replace(state, controller=None, trace=None)
    for at in range(begin, end, chunk):
        after = _read_chunk(drafter, models, after, chunk, np.int32(at))
    return dataclasses.replace(after, controller=state.controller, trace=state.trace)


def _read_chunk(drafter: Drafter, models: Models, state: DecodeState, chunk: int, at: np.int32) -> DecodeState:
    """Reads one chunk."""
    target, taps = models.target, drafter.taps(models)
    x = embed_chunk(target.embedding, state.tokens, at, chunk=chunk)
    inputs = dict[int, Array]()  # of the tapped layers
    cache: list[kv.KV] = []
    for group in groups(target.config.num_layers):
        layers, first = target.layers[group], x
        keep = needs_inputs(layers, taps)
        x, later, written = run_group(layers, state.cache[group], first, at, config=target.config, keep_inputs=keep)
        by_layer = zip(range(group.start, group.stop), (first, *later), strict=False)
        inputs |= {layer: stream for layer, stream in by_layer if layer in taps}
        cache += written
    tapped = tuple(inputs[tap] for tap in taps)
    after = end_chunk(models, dataclasses.replace(state, cache=()), x, tapped, at, drafter=drafter)
    return dataclasses.replace(after, cache=tuple(cache))


def groups(num_layers: int) -> list[slice]:
    """Equal groups of layers: the largest size that divides their number and is at most `layers_together()`."""
    size = max(size for size in range(1, layers_together() + 1) if num_layers % size == 0)
    return [slice(begin, begin + size) for begin in range(0, num_layers, size)]


def needs_inputs(layers: Sequence[Layer], taps: Sequence[int]) -> bool:
    """Whether the program of a group returns what its layers read; the first layer's input is there already."""
    return bool(taps) and len(layers) > 1


@dataclasses.dataclass(frozen=True)
class Step:
    """A program of prefill.

    Attributes:
        name: what the program does, in a word.
        program: a jitted function.
        arguments: its arguments; arrays may be abstract.
        settings: its static arguments.
        times: number of calls for a chunk.
    """

    name: str
    program: Any
    arguments: tuple[Any, ...]
    settings: Mapping[str, Any]
    times: int = 1


def steps(drafter: Drafter, models: Models, state: DecodeState, chunk: int) -> Iterator[Step]:
    """The programs that read a chunk, for an abstract state whose arrays have the shardings of a real one."""
    target, taps, place = models.target, drafter.taps(models), state.length.sharding
    shape = (state.length.shape[0], chunk, target.config.hidden_size)
    if isinstance(place, jax.sharding.NamedSharding):
        place = sharding.named_sharding(place.mesh, STREAM, shape)
    stream = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
    at = np.int32(0)  # NumPy's, because JAX would put its own on absent devices
    yield Step("embedding", embed_chunk, (target.embedding, state.tokens, at), {"chunk": chunk})
    first, *others = groups(target.config.num_layers)
    layers = target.layers[first]
    settings = {"config": target.config, "keep_inputs": needs_inputs(layers, taps)}
    yield Step("layers", run_group, (layers, state.cache[first], stream, at), settings, 1 + len(others))
    ending = (models, _bare(state), stream, (stream,) * len(taps), at)
    yield Step("end", end_chunk, ending, {"drafter": drafter})


def _bare(state: DecodeState) -> DecodeState:
    """The abstract state that `end_chunk` takes: without the target's cache, the controller's state and the trace."""
    places = {path: leaf.sharding for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    bare = jax.eval_shape(lambda state: dataclasses.replace(state, cache=(), controller=None, trace=None), state)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf.update(sharding=places[path]), bare)


@partial(jax.jit, static_argnames="chunk")
def embed_chunk(
    table: nnx.Param, tokens: Int[Array, "B S"], at: Int[Array, ""], *, chunk: int
) -> Float[Array, "B T D"]:
    """The embeddings of a chunk's tokens, which start at position `at`."""
    return look_up(table, jax.lax.dynamic_slice_in_dim(tokens, at, chunk, axis=1)).astype(jnp.float32)


@partial(
    jax.jit,
    static_argnames=("config", "keep_inputs"),
    donate_argnames="cache",
    compiler_options=chosen_options(TPU_PREFILL_OPTIONS),
)
def run_group(
    layers: Sequence[Layer],
    cache: tuple[kv.KV, ...],
    x: Float[Array, "B T D"],
    at: Int[Array, ""],
    *,
    config: LlamaConfig,
    keep_inputs: bool,
) -> tuple[Float[Array, "B T D"], Taps, tuple[kv.KV, ...]]:
    """Runs a group of layers. Returns their output, with `keep_inputs` all inputs but the first, and their caches."""
    batch, chunk, _ = x.shape
    start = jnp.full((batch,), at)
    positions = jnp.broadcast_to(at + jnp.arange(chunk), (batch, chunk))
    x, nodes, inputs = run_layers(layers, x, rotary(config, positions), over_chunk(cache, start, chunk))
    # A non-negative integer from the layers' output makes the write wait until all layers have read the cache.
    after = jax.lax.bitcast_convert_type(jnp.abs(x[:, 0, 0]), jnp.int32)
    return x, tuple(inputs[1:]) if keep_inputs else (), kv.append(cache, nodes, start, after=after)


def over_chunk(cache: tuple[kv.KV, ...], start: Int[Array, " B"], chunk: int) -> tuple[Attend, ...]:
    """The attention of each layer for a chunk whose first tokens are at `start`, the same for all rows."""
    mask = causal_mask(len(start), chunk)
    later = over_cache(visible(mask, start, kv.capacity(cache)), cache)
    if not time_grows_with_tokens() or split_rows.parts() > 1:
        return later
    # Before the first chunk the cache is empty, and a CPU takes as long for empty rows as for full ones.
    first = over_cache(visible(mask, start, 1), [layer.rows(0, 1) for layer in cache])
    return tuple(Partial(jax.lax.cond, start[0] == 0, *each) for each in zip(first, later, strict=True))


@partial(jax.jit, static_argnames="drafter", donate_argnames="state")
def end_chunk(
    models: Models,
    state: DecodeState,
    x: Float[Array, "B T D"],
    tapped: Taps,
    at: Int[Array, ""],
    *,
    drafter: Drafter,
) -> DecodeState:
    """The state after a chunk: samples the first token of each prompt that ends in it, and updates the drafter.

    Args:
        state: as in `_bare`, without the target's cache.
        x: the residual stream after the last layer.
        tapped: the residual stream before the layers that the drafter reads.
    """
    target, prompt, chunk = models.target, state.length, x.shape[1]
    keys = fold(fold(state.keys, prompt), FIRST)
    hidden = target.final_norm(x)

    @jax.named_scope(FIRST_TOKEN)
    def draw_first(feature):
        logits = target.logits(feature)
        first = sample(keys, probabilities(logits[:, 0], state.sampling))
        log_prob = None if state.log_prob is None else log_prob_of(logits, first[:, None])[:, 0]
        return first, are_finite(logits[:, 0]), log_prob

    def draw_nothing(feature):
        log_prob = None if state.log_prob is None else jnp.zeros_like(state.log_prob[:, 0])
        return jnp.zeros_like(prompt), state.finite, log_prob

    ends = (prompt > at) & (prompt <= at + chunk)
    feature = take(hidden, jnp.clip(prompt - 1 - at, 0, chunk - 1)[:, None])
    first, finite, first_log_prob = jax.lax.cond(ends.any(), draw_first, draw_nothing, feature)

    def write_first(values: Array, new: Array) -> Array:
        """The values [B S] with `new` [B] at the end of each prompt that ends in this chunk."""
        old = jnp.take_along_axis(values, prompt[:, None], axis=1)
        return write_block(values, jnp.where(ends[:, None], new[:, None], old), prompt)

    tokens = write_first(state.tokens, first)
    count = jnp.clip(prompt - at, 0, chunk)
    committed = Committed(
        start=jnp.where(count > 0, at, prompt + 1),
        count=count,
        token=jax.lax.dynamic_slice_in_dim(state.tokens, at, chunk, axis=1),
        next_token=jax.lax.dynamic_slice_in_dim(tokens, at + 1, chunk, axis=1),
        hidden=hidden,
        taps=target.tapped(tapped),
    )
    # Once the longest prompt is read, all rows begin. With a budget of 0 the first token is dropped too.
    begun = ~state.done & (prompt.max() <= at + chunk)
    length = prompt + (begun & (prompt < state.limit))
    first = jnp.take_along_axis(tokens, prompt[:, None], axis=1)
    done = state.done | (begun & ((first == state.eos).any(axis=1) | (length >= state.limit)))
    return constrain_state(
        dataclasses.replace(
            state,
            tokens=tokens,
            length=length,
            done=done,
            finite=jnp.where(ends, finite, state.finite),
            feature=jnp.where(ends[:, None], feature[:, 0], state.feature),
            drafter=drafter.observe(models, state.drafter, committed),
            log_prob=None if state.log_prob is None else write_first(state.log_prob, first_log_prob),
        )
    )
