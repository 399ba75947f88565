"""A TPU kernel for attention over [committed prefix ; tree nodes] that keeps the scores in VMEM.

It uses an online softmax over blocks of scores (arXiv:1805.02867, arXiv:2205.14135). The nodes come first, with the
tree mask, then the cache in blocks of rows. Blocks beyond the length of a text are neither read nor computed. JAX's own
kernels do not support tree masks, and read all rows or need another layout of keys or pages.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model import backend
from jaxspec.model.kv_cache import KV, NODE_AXES, axes
from jaxspec.model.sharding import on_each_device

NAME = "attention_kernel"
"""The kernel's name in compiled programs."""

QUERY_AXES = ("batch", "kv_heads", "query_group", None, None)

LONG = 4096  # fewest rows of a cache for the kernel: at 2,048 rows the compiler estimates no gain
BLOCK = 2048  # rows of the cache in a block: 0.5 MB of keys; reading them takes longer than a step's overhead
QUERIES = 1024  # most rows of queries that share one read of a block
SCORES = 2**20  # scores held at once: 4 MB of the core's memory
MEMORY = 16 * 2**20  # bytes of the core's memory that the kernel may use: several copies of the scores, and two blocks
LOWEST = float(jnp.finfo(jnp.float32).min)


Ref = Any  # a block of an array in a core's memory, as Pallas hands it to a kernel


def fits(query: tuple[int, ...], rows: int) -> bool:
    """Whether the kernel is used for queries [B K G W H]: on TPUs, from `LONG` rows on, if 128 divides `rows` and H."""
    *_, group, width, dim = query
    whole = rows % 128 == 0 and dim % 128 == 0 and queries_at_once(group, width) is not None
    return backend.has_attention_kernel() and rows >= LONG and whole


def queries_at_once(group: int, width: int) -> int | None:
    """Rows of queries in a block: all query heads of one KV head, or part of one head; None if neither is possible."""
    if group * width <= QUERIES:
        return group * width
    return next((part for part in (512, 256, 128) if width % part == 0), None)


def attend_in_kernel(
    query: Float[Array, "B K G W H"],
    prefix: KV,
    cached: Int[Array, " B"],
    nodes: KV,
    mask: Bool[Array, "B W N"],
    *,
    interpret: bool = False,
) -> Float[Array, "B K G W H"]:
    """Attention of W queries of each head over the first `cached` rows of the prefix and the nodes visible by `mask`.

    The result has the dtype of the queries. `interpret` runs the kernel without a TPU.
    """
    kernel = lambda *parts: attend_on_one_chip(*parts, interpret=interpret)[0]
    arrays = (query, QUERY_AXES), (prefix, axes), (nodes, NODE_AXES), (cached, ("batch",)), (mask, ("batch",))
    return on_each_device(kernel, *arrays, out=(query, QUERY_AXES))


def attend_on_one_chip(
    query: Float[Array, "B K G W H"],
    prefix: KV,
    nodes: KV,
    cached: Int[Array, " B"],
    mask: Bool[Array, "B W N"],
    *,
    residuals: bool = False,
    interpret: bool = False,
) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K G W 1"] | None]:
    """The kernel on one chip's part of the arrays: attention, and with `residuals` the scores' log-sum-exp, float32."""
    from jax.experimental import pallas as pl  # this import takes half a second, and only TPUs need it
    from jax.experimental.pallas import tpu as pltpu

    batch, heads, group, width, dim = query.shape
    rows, count, queries = prefix.v.shape[2], mask.shape[2], group * width
    part = queries_at_once(group, width)
    assert part is not None, "the kernel does not take this shape: see `fits`"
    block = math.gcd(rows, min(BLOCK, SCORES // part))
    seen = mask.astype(jnp.int8)
    if part == queries:
        seen = jnp.tile(seen, (1, group, 1))
    masks = seen.shape[1] // part

    # The kernel reads values from main memory, only blocks with tokens. Otherwise the compiler copies all rows of keys
    # and values into fast memory before the kernel. The keys' copy stays: it overlaps with the products before it.
    values = prefix.v if interpret else pltpu.with_memory_space_constraint(prefix.v, pltpu.HBM)
    # Past the last block with tokens its index repeats, so Pallas copies nothing.
    live = lambda s, b, cached: jnp.minimum(s, jax.lax.div(jnp.maximum(cached[b] - 1, 0), block))
    of_queries = lambda width: pl.BlockSpec((None, None, part, width), lambda b, h, q, s, cached: (b, h, q, 0))
    nodes_k = nodes.k.mT  # keys of nodes have the layout of their values in the kernel
    cached_bytes = 2 * prefix.k.dtype.itemsize * batch * heads * rows * dim * (queries // part)
    out, *sums = pl.pallas_call(
        functools.partial(_step, block=block, scale=dim**-0.5),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, heads, queries // part, rows // block),
            in_specs=[
                of_queries(dim),
                pl.BlockSpec((None, None, dim, block), lambda b, h, q, s, cached: (b, h, 0, live(s, b, cached))),
                pl.BlockSpec((None, None, block, dim), lambda b, h, q, s, cached: (b, h, live(s, b, cached), 0)),
                pl.BlockSpec((None, None, count, dim), lambda b, h, q, s, cached: (b, h, 0, 0)),
                pl.BlockSpec((None, None, count, dim), lambda b, h, q, s, cached: (b, h, 0, 0)),
                pl.BlockSpec((None, part, count), lambda b, h, q, s, cached: (b, jax.lax.rem(q, masks), 0)),
            ],
            out_specs=[of_queries(dim), *[of_queries(1)] * residuals],
            scratch_shapes=[pltpu.VMEM((part, columns), jnp.float32) for columns in (dim, 1, 1)],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((batch, heads, queries, dim), query.dtype),
            *[jax.ShapeDtypeStruct((batch, heads, queries, 1), jnp.float32)] * residuals,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=MEMORY
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * queries * (rows + count) * dim,
            transcendentals=batch * heads * queries * (rows + count),
            bytes_accessed=cached_bytes + 2 * query.nbytes,
        ),
        interpret=interpret,
        name=NAME,
    )(cached, query.reshape(batch, heads, queries, dim), prefix.k, values, nodes_k, nodes.v, seen)
    return out.reshape(query.shape), sums[0].reshape(*query.shape[:-1], 1) if residuals else None


def _step(
    cached: Ref,
    query: Ref,
    prefix_k: Ref,
    prefix_v: Ref,
    nodes_k: Ref,
    nodes_v: Ref,
    mask: Ref,
    out: Ref,
    *others: Ref,
    block: int,
    scale: float,
) -> None:
    """Adds one block of the cache to the running softmax. The first step starts with the nodes; the last writes `out`.

    `others`: the log-sum-exp with `residuals`; the weighted sum of values, largest score and sum of weights so far.
    """
    from jax.experimental import pallas as pl

    *log_total, mixed, peak, weight = others

    at, length = pl.program_id(3) * block, cached[pl.program_id(0)]
    score = lambda keys: jnp.dot(query[...], keys.astype(query.dtype), preferred_element_type=jnp.float32) * scale
    mix = lambda shares, values: jnp.dot(shares.astype(values.dtype), values, preferred_element_type=jnp.float32)

    @pl.when(at == 0)
    def over_nodes():
        scores = jnp.where(mask[...].astype(jnp.int32) > 0, score(nodes_k[...].T), LOWEST)
        peak[...] = scores.max(axis=1, keepdims=True)
        shares = jnp.exp(scores - peak[...])
        weight[...] = shares.sum(axis=1, keepdims=True)
        mixed[...] = mix(shares, nodes_v[...])

    def join(scores, values):
        before = peak[...]
        peak[...] = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        fade, shares = jnp.exp(before - peak[...]), jnp.exp(scores - peak[...])
        weight[...] = fade * weight[...] + shares.sum(axis=1, keepdims=True)
        mixed[...] = fade * mixed[...] + mix(shares, values)

    @pl.when(at + block <= length)
    def over_block():
        join(score(prefix_k[...]), prefix_v[...])

    @pl.when((at < length) & (at + block > length))
    def over_part_of_a_block():
        scores, values = score(prefix_k[...]), prefix_v[...]
        scores = jnp.where(at + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1) < length, scores, LOWEST)
        row = at + jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
        join(scores, jnp.where(row < length, values, jnp.zeros_like(values)))  # 0 * NaN would be NaN

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish():
        out[...] = (mixed[...] / weight[...]).astype(out.dtype)
        for each in log_total:
            each[...] = peak[...] + jnp.log(weight[...])
