"""Refilled rows: a finished row takes the next prompt, which was prefilled in a small state of its own."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxspec.decoding.decode_state import DecodeState
from jaxspec.model import kv_cache
from jaxspec.model.kv_cache import KV
from jaxspec.model.sharding import Axes, on_each_device

OF_A_TEXT = ("tokens", "length", "limit", "done", "keys", "sampling", "cache", "feature", "drafter", "log_prob")
"""Fields that a new text replaces. The row's counts and trees of earlier rounds stay, in columns of their own."""


@partial(jax.jit, donate_argnames="state")
def admit(
    state: DecodeState,
    fresh: DecodeState,
    row: Int[Array | np.ndarray, " D"],
    chosen: Bool[Array | np.ndarray, " D"],
) -> DecodeState:
    """Writes prefilled prompts into rows of the batch, in place.

    Each row is overwritten whole, with zeros after the prompt, so that nothing of its last text remains.

    Args:
        fresh: state after prefill with D rows, one for each of the D parts that the mesh's axis `data` makes of a
            batch. If its controller is None, the row keeps its controller's state.
        row: index of the row to overwrite in each part.
        chosen: whether each part's row is overwritten.
    """
    names = [*OF_A_TEXT, *["controller"] * (fresh.controller is not None)]
    old, new = ({name: getattr(each, name) for name in names} for each in (state, fresh))
    is_kv = lambda leaf: isinstance(leaf, KV)
    leaves, tree = jax.tree.flatten(old, is_leaf=is_kv)
    pairs = list(zip(leaves, jax.tree.leaves(new, is_leaf=is_kv), strict=True))
    caches = _written([pair for pair in pairs if is_kv(pair[0])], kv_cache.axes, row, chosen)
    others = _written([pair for pair in pairs if not is_kv(pair[0])], ("batch",), row, chosen)
    return dataclasses.replace(state, **tree.unflatten([next(caches if is_kv(leaf) else others) for leaf in leaves]))


def _written(pairs: list[tuple[Any, Any]], axes: Axes, row: Any, chosen: Any) -> Any:
    old, new = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    by_row = ("batch",)
    arrays = ((old, axes), (new, axes), (row, by_row), (chosen, by_row))
    return iter(on_each_device(_write, *arrays, out=(old, axes)))


def _write(old: Any, new: Any, row: Int[Array, " 1"], chosen: Bool[Array, " 1"]) -> Any:
    """Writes the only row of `new` to `row` of `old`, if it is chosen."""

    def put(into, values):
        room = [(0, most - length) for most, length in zip(into.shape[1:], values.shape[1:], strict=True)]
        if any(more for _, more in room):
            values = jnp.pad(values, [(0, 0), *room])
        at = [row[0], *[0] * (into.ndim - 1)]
        kept = jax.lax.dynamic_slice(into, at, values.shape)
        return jax.lax.dynamic_update_slice(into, jnp.where(chosen[0], values, kept), at)

    return jax.tree.map(put, old, new)
