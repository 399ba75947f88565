"""Attention: one function over segments of keys, each with a mask, and its forms for decoding and training.

A layer takes attention as a function of its queries, keys and values (`Attend`). In decoding it attends to [committed
prefix ; tree nodes], which are separate arrays, so that the cache is only read. In training it attends to windows of
text, in blocks of queries.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model import attention_kernel, backend, split_rows
from jaxspec.model.kv_cache import KV, NODE_AXES, axes, capacity, write_nodes
from jaxspec.model.sharding import on_each_device, sharded_axes

CHUNK = 128  # fewest queries for cuDNN's attention: chunks of a prompt, and no trees
QUERIES = 128  # queries in a block, in training
LOWEST = jnp.finfo(jnp.float32).min

Attend = Callable[[Array, Array, Array], tuple[Array, Any]]
"""(queries [B K G W H], keys [B K W H], values [B K W H]) → their attention [B K G W H], and what to keep of the layer:
in decoding its nodes, a `KV`. A `jax.tree_util.Partial`, so that layers of the same shape are traced once."""


@chex.dataclass(frozen=True)
class Keys:
    """S keys and values, and the mask of those that each of W queries sees (the same for all, if W is 1 here)."""

    kv: KV
    mask: Bool[Array, "B W S"]

    def scores(self, query: Float[Array, "B K G W H"]) -> Float[Array, "B K G W S"]:
        dtype = jnp.promote_types(query.dtype, self.kv.k.dtype)
        query, key = query.astype(dtype), self.kv.k.astype(dtype)
        dots = jnp.einsum("bkgwh,bkhs->bkgws", query, key, preferred_element_type=jnp.float32)
        return jnp.where(self.mask[:, None, None], dots * query.shape[-1] ** -0.5, LOWEST)

    def mix(self, weights: Float[Array, "B K G W S"]) -> Float[Array, "B K G W H"]:
        value = self.kv.v
        return jnp.einsum("bkgws,bksh->bkgwh", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)


@chex.dataclass(frozen=True)
class OwnKeys:
    """One key and value for each of W queries, which no other query sees."""

    k: Float[Array, "B K W H"]
    v: Float[Array, "B K W H"]

    def scores(self, query: Float[Array, "B K G W H"]) -> Float[Array, "B K G W 1"]:
        dots = jnp.einsum("bkgwh,bkwh->bkgw", query, self.k, preferred_element_type=jnp.float32)
        return dots[..., None] * query.shape[-1] ** -0.5

    def mix(self, weights: Float[Array, "B K G W 1"]) -> Float[Array, "B K G W H"]:
        return weights.astype(self.v.dtype) * self.v[:, :, None]


def attend(
    query: Float[Array, "B K G W H"], segments: Sequence[Keys | OwnKeys]
) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K G W 1"]]:
    """Attention of W queries of each head over the visible keys of all segments, and the scores' log-sum-exp; float32.

    All scores are held at once. That is fastest on a CPU with short caches. GPUs use this form too; whether another is
    faster there is neither measured nor estimated.
    """
    scores = [segment.scores(query) for segment in segments]
    # The peak changes no result, so it needs no gradient.
    peak = jax.lax.stop_gradient(functools.reduce(jnp.maximum, (each.max(-1, keepdims=True) for each in scores)))
    weights = [jnp.exp(each - peak) for each in scores]
    total = functools.reduce(operator.add, (each.sum(-1, keepdims=True) for each in weights))
    rounded = [each.astype(query.dtype) for each in weights]
    mixed = functools.reduce(operator.add, (part.mix(each) for part, each in zip(segments, rounded, strict=True)))
    return mixed / total, peak + jnp.log(total)


# --- in training, over windows of text


def attend_in_blocks(
    query: Float[Array, "B K G Q H"], segments: Callable[[int, int], Sequence[Keys | OwnKeys]]
) -> Float[Array, "B K G Q H"]:
    """`attend` by blocks of queries, so that few scores are held at once; `segments(start, end)` are a block's."""
    blocks = []
    for start in range(0, query.shape[3], QUERIES):
        end = min(start + QUERIES, query.shape[3])
        out, _ = attend(query[:, :, :, start:end], segments(start, end))
        blocks.append(out.astype(query.dtype))
    return jnp.concatenate(blocks, axis=3)


def within_documents(segment: Int[Array, "B T"], start: int, end: int) -> Bool[Array, "B queries keys"]:
    """Causal mask inside documents, numbered by `segment`, of queries `start` to `end` - 1 and keys 0 to `end` - 1."""
    before = jnp.arange(start, end)[:, None] >= jnp.arange(end)
    return before & (segment[:, start:end, None] == segment[:, None, :end])


def over_documents(segment: Int[Array, "B T"]) -> Attend:
    """Attention to the earlier tokens of the same document. It keeps the keys and values."""
    return Partial(_attend_to_documents, segment)


def _attend_to_documents(segment: Array, query: Array, key: Array, value: Array) -> tuple[Array, KV]:
    new = KV(k=key.mT, v=value)

    def segments(start: int, end: int) -> list[Keys]:
        return [Keys(kv=new.rows(0, end), mask=within_documents(segment, start, end))]

    return attend_in_blocks(query, segments), new


def over_steps(segment: Int[Array, "B T"], earlier: Sequence[OwnKeys], window: int = 0) -> Attend:
    """Attention of a step of drafting in EAGLE-3's training; it keeps the keys and values of all steps.

    A row of a later step sees step 0 of the rows up to its own, in its document, and the later steps of its own row.
    With a `window` (0: none) it sees only so many positions back, as in decoding; a row's position grows by 1 a step.
    """
    return Partial(_attend_to_steps, segment, tuple(earlier), window)


def _attend_to_steps(
    segment: Array, earlier: tuple[OwnKeys, ...], window: Array | int, query: Array, key: Array, value: Array
) -> tuple[Array, tuple[OwnKeys, ...]]:
    first, *later = steps = (*earlier, OwnKeys(k=key, v=value))
    rows = KV(k=first.k.mT, v=first.v)

    def segments(start: int, end: int) -> list[Keys | OwnKeys]:
        own = [OwnKeys(k=step.k[:, :, start:end], v=step.v[:, :, start:end]) for step in later]
        back = jnp.arange(start, end)[:, None] + len(later) - jnp.arange(end)
        near = (back < window) | (window == 0)
        return [Keys(kv=rows.rows(0, end), mask=within_documents(segment, start, end) & near), *own]

    return attend_in_blocks(query, segments), steps


def over_context(
    segment: Int[Array, "B T"], anchor: Int[Array, "B anchors"], context: KV, causal: bool = False
) -> Attend:
    """Attention of DFlash's blocks in training: to the own block (if `causal`, up to itself), and to the context.

    `context` are the keys and values of a window's T tokens, `anchor` the index of each block's first token among them.
    A block sees the tokens of its document before its anchor.
    """
    return Partial(_attend_to_context, segment, anchor, context, causal)


def _attend_to_context(
    segment: Array, anchor: Array, context: KV, causal: Array | bool, query: Array, key: Array, value: Array
) -> tuple[Array, None]:
    (batch, anchors), count, new = anchor.shape, query.shape[3], KV(k=key.mT, v=value)
    width = count // anchors
    root = jnp.repeat(anchor, width, axis=1)

    def segments(start: int, end: int) -> list[Keys]:
        low, high = start // width * width, -(-end // width) * width
        row, other = jnp.arange(start, end)[:, None], jnp.arange(low, high)
        own = (row // width == other // width) & ((row >= other) | ~jnp.asarray(causal))
        own = jnp.broadcast_to(own, (batch, *own.shape))
        return [_verified(segment, root[:, start:end], context), Keys(kv=new.rows(low, high), mask=own)]

    return attend_in_blocks(query, segments), None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rounds:
    """Windows of text cut into rounds of drafting, for EDD's dual-block mask (its paper's §3.1).

    Attributes:
        segment: number of each token's document.
        root: index of the first token of each token's round, in the same document.
        longest: upper bound of the tokens of a round.
    """

    segment: Int[Array, "B T"]
    root: Int[Array, "B T"]
    longest: int = dataclasses.field(metadata={"static": True})


def over_rounds(rounds: Rounds, verified: KV) -> Attend:
    """Attention of drafted tokens: to the verified tokens before their round, and to their round up to themselves.

    `verified` are the keys and values that the T tokens have after verification.
    """
    return Partial(_attend_to_rounds, rounds, verified)


def _attend_to_rounds(rounds: Rounds, verified: KV, query: Array, key: Array, value: Array) -> tuple[Array, None]:
    new = KV(k=key.mT, v=value)

    def segments(start: int, end: int) -> list[Keys]:
        root, low = rounds.root[:, start:end], max(0, start - rounds.longest + 1)
        at, token = jnp.arange(start, end)[:, None], jnp.arange(low, end)
        drafted = (root[..., None] <= token) & (token <= at)
        before = _verified(rounds.segment[:, :end], root, verified.rows(0, end))
        return [before, Keys(kv=new.rows(low, end), mask=drafted)]

    return attend_in_blocks(query, segments), None


def _verified(segment: Int[Array, "B S"], root: Int[Array, "B W"], tokens: KV) -> Keys:
    """Those of a window's tokens before each query's root, in the root's document."""
    document = jnp.take_along_axis(segment, root, axis=1)
    before = jnp.arange(segment.shape[1]) < root[..., None]
    return Keys(kv=tokens, mask=before & (document[..., None] == segment[:, None]))


# --- in decoding


@chex.dataclass(frozen=True)
class Visible:
    """What the W nodes of one forward pass see: the same in every layer, except in those with a sliding window.

    Attributes:
        cached: [B], the number of committed tokens; they are the first rows of the cache.
        prefix: [B W S] bool, the rows of the cache that node w sees; W is 1 if all nodes see the same.
        mask: [B W N] bool, node w sees node n (its ancestors and itself).
        slots: [B W], index of each of the W nodes among the N; None if W = N.
        first: [B W], position of the first committed token that each node sees; None: 0.
    """

    cached: Int[Array, " B"]
    prefix: Bool[Array, "B #W S"]
    mask: Bool[Array, "B W N"]
    slots: Int[Array, "B W"] | None = None
    first: Int[Array, "B W"] | None = None


def visible(
    mask: Bool[Array, "B W N"], cached: Int[Array, " B"], rows: int, slots: Int[Array, "B W"] | None = None
) -> Visible:
    """The `Visible` of nodes that see each other by `mask`, and the first `cached` of a cache's `rows` rows."""
    return Visible(cached=cached, prefix=(jnp.arange(rows) < cached[:, None])[:, None], mask=mask, slots=slots)


def in_window(
    seen: Visible, window: int, position: Int[Array, "B W"], node_position: Int[Array, "B N"], rows: int
) -> Visible:
    """The same for a layer where a query sees the last `window` positions, its own included.

    Args:
        position: positions of the W queries, `node_position` of the N nodes.
        rows: rows of this layer's cache. It may hold only the last `window` or more positions (`kv_cache.write_ring`).
    """
    near, first = position[..., None] - node_position[:, None] < window, position - window + 1
    last = seen.cached[:, None] - 1
    held = last - (last - jnp.arange(rows)) % rows  # position in each row of the cache; below 0 in empty rows
    prefix = held[:, None] >= jnp.maximum(first, 0)[..., None]
    return dataclasses.replace(seen, prefix=prefix, mask=seen.mask & near, first=first)


def causal_mask(batch: int, width: int) -> Bool[Array, "B W W"]:
    """Each of `width` tokens sees itself and the tokens before it."""
    return jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))


def over_cache(seen: Visible, cache: Sequence[KV], nodes: Sequence[KV] | None = None) -> tuple[Attend, ...]:
    """Attention over [committed prefix ; tree nodes], for each layer of a cache. It keeps all nodes' keys and values.

    `nodes` are the keys and values of each layer's N nodes so far; None: the W new ones are all the nodes.
    """
    before = [None] * len(cache) if nodes is None else nodes
    return tuple(Partial(_attend_to_cache, seen, *layer) for layer in zip(cache, before, strict=True))


def _attend_to_cache(
    seen: Visible,
    prefix: KV,
    nodes: KV | None,
    query: Float[Array, "B K G W H"],
    key: Float[Array, "B K W H"],
    value: Float[Array, "B K W H"],
) -> tuple[Float[Array, "B K G W H"], KV]:
    new = KV(k=key.mT.astype(prefix.k.dtype), v=value.astype(prefix.v.dtype))
    if nodes is None:
        nodes = new
    else:
        assert seen.slots is not None, "the slots of the new nodes among the old are needed"
        nodes = write_nodes(nodes, new, seen.slots)

    segments = (Keys(kv=prefix, mask=seen.prefix), Keys(kv=nodes, mask=seen.mask))
    if split_rows.parts() > 1:
        out = attend_to_split_rows(query, prefix, nodes, seen)
    elif seen.first is None and attention_kernel.fits(query.shape, capacity((prefix,))):
        out = attention_kernel.attend_in_kernel(query, prefix, seen.cached, nodes, seen.mask)
    elif query.shape[3] >= CHUNK and backend.uses_cudnn():
        out = attend_in_cudnn(query, segments)
    else:
        out, _ = attend(query, segments)
    return out, nodes


def attend_in_cudnn(
    query: Float[Array, "B K G W H"], segments: Sequence[Keys], *, implementation: Literal["cudnn", "xla"] = "cudnn"
) -> Float[Array, "B K G W H"]:
    """`attend` by cuDNN's fused attention, in the dtype of the queries, bfloat16 or float16.

    It copies keys and values, whose layout it does not share. `implementation` is for tests: XLA's runs everywhere.
    """
    batch, _, _, width, dim = query.shape
    key = jnp.concatenate([segment.kv.k for segment in segments], axis=3)
    value = jnp.concatenate([segment.kv.v for segment in segments], axis=2)
    whole = lambda mask: jnp.broadcast_to(mask, (batch, width, mask.shape[2]))
    out = jax.nn.dot_product_attention(
        query.reshape(batch, -1, width, dim).swapaxes(1, 2),
        key.transpose(0, 3, 1, 2),
        value.swapaxes(1, 2),
        mask=jnp.concatenate([whole(segment.mask) for segment in segments], axis=2)[:, None],
        implementation=implementation,
    )
    return out.swapaxes(1, 2).reshape(query.shape)


def attend_to_split_rows(
    query: Float[Array, "B K G W H"], prefix: KV, nodes: KV, seen: Visible
) -> Float[Array, "B K G W H"]:
    """Attention over a cache whose rows are split over devices (`split_rows`), and over the visible nodes; float32.

    Such a cache holds all positions, also in layers with a window.
    """
    queries, row = attention_kernel.QUERY_AXES, ("batch",)
    group_is_split = split_rows.AXIS in sharded_axes("query_group", query.shape[2])
    windowed, first = seen.first is not None, jnp.zeros((1, 1), jnp.int32) if seen.first is None else seen.first

    def on_one_device(query: Array, prefix: KV, cached: Array, nodes: KV, mask: Array, first: Array) -> Array:
        held, rows = split_rows.held(cached), capacity((prefix,))

        def attend_here(query: Array, is_first: Array) -> tuple[Array, Array]:
            own = mask & is_first
            if not windowed and attention_kernel.fits(query.shape, rows):
                out, log_total = attention_kernel.attend_on_one_chip(query, prefix, nodes, held, own, residuals=True)
                assert log_total is not None
                return out, log_total
            live = (jnp.arange(rows) < held[:, None])[:, None]
            if windowed:
                live &= jnp.arange(rows) >= split_rows.held(first)[..., None]
            return attend(query, (Keys(kv=prefix, mask=live), Keys(kv=nodes, mask=own)))

        return split_rows.combine(query, attend_here, group_is_split=group_is_split)

    arrays = ((query, queries), (prefix, axes), (seen.cached, row), (nodes, NODE_AXES), (seen.mask, row), (first, row))
    return on_each_device(on_one_device, *arrays, out=(query, queries))
