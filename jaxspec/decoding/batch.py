"""A batch of requests as a decoding state: put on the device, sharded over a mesh, and refilled slot by slot."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt

from jaxspec.decoding.controller import Controller
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Drafter, Models
from jaxspec.decoding.prefill_buckets import power_of_two
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.round_records import empty_trace, no_rounds
from jaxspec.decoding.sampling import Sampling, row_key
from jaxspec.decoding.speculation import Speculation
from jaxspec.host.processes import fetch, put
from jaxspec.model import kv_cache
from jaxspec.model.kv_cache import KV
from jaxspec.model.sharding import AnyMesh, constrain, on_each_device, placed_leaf

IDLE = Request([0], SamplingParams(max_new_tokens=1))
"""The request that pads a batch."""
MOST = 2**31 - 1  # the largest int32


def data_parts() -> int:
    """Number of parts into which the current mesh shards the rows of a batch."""
    return jax.sharding.get_abstract_mesh().shape.get("data", 1)


def padded(requests: Sequence[Request], parts: int | None = None) -> list[Request]:
    """The requests, padded with IDLE to a power of two, and then to a multiple of `parts` (None: `data_parts()`).

    So every part of the mesh's axis `data` has the same number of rows.
    """
    batch = power_of_two(len(requests))
    return [*requests, *[IDLE] * (batch + -batch % (parts or data_parts()) - len(requests))]


def start(
    spec: Speculation,
    models: Models,
    requests: Sequence[Request],
    eos: Sequence[int],
    cache_len: int,
    among: Sequence[Request] | None = None,
    device: jax.sharding.Sharding | None = None,
) -> DecodeState:
    """The state of these requests before prefill, on the device or on the current mesh. Rows of IDLE are finished.

    Args:
        eos: token ids that end a text.
        cache_len: length of the caches, S.
        among: these requests and those that may replace them, whose states must have the same structure: if one uses
            top-k or top-p, all states have an array for it. None: only `requests`.
        device: sharding of all arrays if there is no mesh; None: JAX's default.
    """
    among = requests if among is None else among
    tokens = np.zeros((len(requests), cache_len), np.int32)
    for row, request in enumerate(requests):
        tokens[row, : len(request.tokens)] = request.tokens
    column = lambda read, dtype: np.array([read(request) for request in requests], dtype)
    lengths = column(lambda r: len(r.tokens), np.int32)
    top_k = column(lambda r: min(r.sampling.top_k, MOST), np.int32) if any(r.sampling.top_k for r in among) else None
    top_p = column(lambda r: r.sampling.top_p, np.float32) if any(r.sampling.top_p < 1 for r in among) else None
    temperature = column(lambda r: r.sampling.temperature, np.float64)
    # Within float32 unless it is 0, so that dividing logits by it cannot overflow.
    temperature = np.where(temperature > 0, np.clip(temperature, 1e-30, 1e30), 0.0).astype(np.float32)
    known = {
        "tokens": tokens,
        "length": lengths,
        "limit": lengths + column(lambda r: r.sampling.max_new_tokens, np.int32),
        "done": np.array([request is IDLE for request in requests]),
        "eos": np.array([*eos, *[-1] * (-len(eos) % 4 or 4 * (not eos))], np.int32),  # few shapes, few compilations
    }
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    seed, index = column(lambda r: r.sampling.seed % 2**32, np.uint32), column(lambda r: r.index, np.uint32)
    # NumPy arrays: one program takes all of them to the device, which avoids one transfer per array.
    strategies = {"drafter": spec.drafter, "controller": spec.controller}
    stored = {"nodes": spec.builder.verified if spec.record else None, "log_probs": spec.log_probs}
    return _new_state(models, seed, index, sampling, known, device=device, **strategies, **stored)


def restore_controller(controller: Any, learnt: Sequence[Any]) -> Any:
    """A controller's state of B rows, in which row i is replaced by `learnt[i]` if that is not None."""
    state = jax.tree.map(np.array, fetch(controller))
    for row, known in enumerate(learnt):
        if known is not None:
            for leaf, value in zip(jax.tree.leaves(state), jax.tree.leaves(known), strict=True):
                leaf[row] = value
    return jax.tree.map(lambda value, old: put(value, old.sharding), state, controller)


def place_state(state: DecodeState, mesh: AnyMesh) -> DecodeState:
    """`jax.ShapeDtypeStruct`s of the state, with its shardings on a mesh."""
    return _with_axes(lambda leaf, axes: placed_leaf(leaf, mesh, axes), state)


@partial(jax.jit, static_argnames=("device", "drafter", "controller", "nodes", "log_probs"))
def _new_state(
    models: Models,
    seed: UInt[Array, " B"],
    index: UInt[Array, " B"],
    sampling: Mapping[str, Any],
    known: Mapping[str, Any],
    *,
    device: jax.sharding.Sharding | None,
    drafter: Drafter,
    controller: Controller,
    nodes: int | None,
    log_probs: bool,
) -> DecodeState:
    """`start` in one program, shared by methods that differ in builder and rule only. On a mesh each array has the
    sharding of `place_state`.

    Args:
        seed, index: of each row's request; they determine the row's random key.
        sampling: the fields of `Sampling`.
        known: the fields of `DecodeState` that follow from the requests; `tokens` has the prompts, left-aligned.
        nodes: number of nodes of the recorded trees; None: no round is recorded.
    """
    batch, cache_len = known["tokens"].shape
    config, dtype = models.target.config, models.target.dtype
    state = DecodeState(
        **known,
        finite=jnp.ones((batch,), bool),
        keys=jax.vmap(row_key)(seed, index),
        sampling=Sampling(**sampling),
        cache=kv_cache.allocate(config, batch, cache_len, dtype),
        feature=jnp.zeros((batch, config.hidden_size), dtype),
        drafter=drafter.init(models, batch, cache_len),
        controller=controller.init(batch),
        round=jnp.zeros((), jnp.int32),
        history=no_rounds(batch, cache_len),
        log_prob=jnp.zeros((batch, cache_len), jnp.float32) if log_probs else None,
        trace=None if nodes is None else empty_trace(batch, cache_len, nodes),
    )
    if device is not None:
        return jax.lax.with_sharding_constraint(state, device)
    return constrain_state(state)


def constrain_state(state: DecodeState) -> DecodeState:
    """The state, sharded as `place_state` has it on the current mesh."""
    return _with_axes(lambda leaf, axes: constrain(leaf, *axes), state)


def _with_axes(use: Callable[[Any, tuple[str | None, ...]], Any], state: DecodeState) -> DecodeState:
    """Replaces every array of a state by `use(array, logical axes)`."""
    eos = jax.tree_util.GetAttrKey("eos")  # has axes, but not B; `round` is a scalar

    def apply(path: tuple, leaf: Any) -> Any:
        if isinstance(leaf, KV):
            return jax.tree_util.tree_map_with_path(lambda path, part: use(part, kv_cache.axes(path)), leaf)
        return use(leaf, ("batch",) if leaf.ndim and path[0] != eos else ())

    return jax.tree_util.tree_map_with_path(apply, state, is_leaf=lambda leaf: isinstance(leaf, KV))


OF_A_TEXT = (
    "tokens", "length", "limit", "done", "keys", "finite", "sampling", "cache", "feature", "drafter", "log_prob"
)  # fmt: skip
"""Fields that a new text replaces. The row's counts and trees of earlier rounds stay, in columns of their own."""


@partial(jax.jit, donate_argnames="state")
def insert(
    state: DecodeState,
    fresh: DecodeState,
    row: Int[Array | np.ndarray, " D"],
    chosen: Bool[Array | np.ndarray, " D"],
) -> DecodeState:
    """Writes prefilled prompts into rows of the batch, in place.

    Each row is overwritten whole, with zeros after the prompt, so that nothing of its previous text remains.

    Args:
        fresh: state after prefill with one row for each part of the batch on the mesh's axis `data`. If its controller
            is None, the row keeps its controller's state.
        row: index of the row to overwrite in each part.
        chosen: whether each part's row is overwritten.
    """
    names = [*OF_A_TEXT, *["controller"] * (fresh.controller is not None)]
    old, new = ({name: getattr(each, name) for name in names} for each in (state, fresh))
    is_kv = lambda leaf: isinstance(leaf, KV)
    leaves, tree = jax.tree.flatten(old, is_leaf=is_kv)
    by_row = ("batch",)
    axes = lambda path: kv_cache.axes(path) if is_kv(leaves[path[0].idx]) else by_row
    arrays = ((leaves, axes), (jax.tree.leaves(new, is_leaf=is_kv), axes), (row, by_row), (chosen, by_row))
    return dataclasses.replace(state, **tree.unflatten(on_each_device(_write, *arrays, out=(leaves, axes))))


def _write(old: Any, new: Any, row: Int[Array, " 1"], chosen: Bool[Array, " 1"]) -> Any:
    """Writes the only row of `new` to `row` of `old`, if it is chosen."""

    def write(into, values):
        padding = [(0, most - length) for most, length in zip(into.shape[1:], values.shape[1:], strict=True)]
        if any(more for _, more in padding):
            values = jnp.pad(values, [(0, 0), *padding])
        start = [row[0], *[row.dtype.type(0)] * (into.ndim - 1)]
        kept = jax.lax.dynamic_slice(into, start, values.shape)
        return jax.lax.dynamic_update_slice(into, jnp.where(chosen[0], values, kept), start)

    return jax.tree.map(write, old, new)
