"""Attention of one layer over [committed prefix ; tree nodes], in two parts, so that the cache is only read."""

from typing import Literal

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model import attention_kernel, backend, split_rows
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV, NODE_AXES, axes, capacity, write_nodes
from jaxspec.model.linear import Linear, linear, rms_norm, settled
from jaxspec.model.rope import rotary, rotate
from jaxspec.model.sharding import on_each_device, sharded_axes

CHUNK = 128  # fewest queries for cuDNN's attention: chunks of a prompt, and no trees


class Attention(nnx.Module):
    """Weights of one layer's attention.

    It writes to the residual stream. `width` is the width I of its input; None: the residual stream's.
    """

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, width: int | None = None):
        c, heads, kv = config, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        width = c.hidden_size if width is None else width
        self.q = Linear(rngs, (width, heads), ("embed", "heads"), bias=c.qkv_bias, dtype=dtype)
        self.k = Linear(rngs, (width, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.v = Linear(rngs, (width, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.o = Linear(rngs, (heads, c.hidden_size), ("heads", "embed"), bias=c.output_bias, dtype=dtype)

        def norm() -> nnx.Param | None:
            return nnx.Param(jnp.ones((c.head_dim,), dtype), axes=(None,)) if c.qk_norm else None

        self.q_norm, self.k_norm = norm(), norm()


@chex.dataclass(frozen=True)
class Attend:
    """The attention mask of one forward pass: what its nodes can see. It is the same for every layer.

    Attributes:
        cos, sin: [B W H/2] float32, rotary tables of the nodes' positions.
        cached: [B], the number of committed tokens; they are the first rows of the cache.
        prefix: [B S] bool, true for those rows.
        mask: [B W N] bool, node w sees node n (its ancestors and itself).
        slots: [B W], index of each of the W nodes among the N; None if W = N.
    """

    cos: Float[Array, "B W h"]
    sin: Float[Array, "B W h"]
    cached: Int[Array, " B"]
    prefix: Bool[Array, "B S"]
    mask: Bool[Array, "B W N"]
    slots: Int[Array, "B W"] | None = None


def project(
    p: Attention, config: LlamaConfig, x: Float[Array, "B W I"], cos: Float[Array, "B W h"], sin: Float[Array, "B W h"]
) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K W H"], Float[Array, "B K W H"]]:
    """Queries, keys and values of one layer's input.

    Queries and keys are rotated, after their RMSNorm if the layer has one. G query heads share each of the K KV heads.
    """

    def split(y):
        y = settled(y)
        return y.reshape(*y.shape[:2], config.num_kv_heads, -1, config.head_dim)

    def normed(y, norm: nnx.Param | None):
        return y if norm is None else rms_norm(y, norm[...], config.norm_eps)

    query = rotate(normed(split(linear(x, p.q)), p.q_norm), cos, sin).transpose(0, 2, 3, 1, 4)
    key = rotate(normed(split(linear(x, p.k)), p.k_norm), cos, sin)[:, :, :, 0].swapaxes(1, 2)
    return query, key, split(linear(x, p.v))[:, :, :, 0].swapaxes(1, 2)


def attention(
    p: Attention, config: LlamaConfig, x: Float[Array, "B W I"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """Attention over [committed prefix ; tree nodes]. The two are separate arrays, so that the cache is only read.

    Args:
        prefix: keys and values of this layer's cache, S rows.
        nodes: keys and values of this layer's N nodes so far; None: the W tokens are all the nodes.

    Returns:
        the output of the layer's attention, and the nodes with the new keys and values.
    """
    batch, width, _ = x.shape
    query, key, value = project(p, config, x, attend.cos, attend.sin)
    new = KV(k=key.swapaxes(2, 3), v=value)
    if nodes is None:
        nodes = new
    else:
        assert attend.slots is not None, "the slots of the new nodes among the old are needed"
        nodes = write_nodes(nodes, new, attend.slots)

    if split_rows.parts() > 1:
        out = attend_to_split_rows(query, prefix, attend.cached, nodes, attend.mask)
    elif attention_kernel.fits(query.shape, capacity((prefix,))):
        out = attention_kernel.attend_in_kernel(query, prefix, attend.cached, nodes, attend.mask)
    elif width >= CHUNK and backend.uses_cudnn():
        out = attend_in_cudnn(query, prefix, attend.prefix, nodes, attend.mask)
    else:
        out, _ = attend_plainly(query, prefix, attend.prefix, nodes, attend.mask)
    out = out.astype(x.dtype).transpose(0, 3, 1, 2, 4).reshape(batch, width, -1)
    return linear(out, p.o), nodes


def attend_plainly(
    query: Float[Array, "B K G W H"],
    prefix: KV,
    in_prefix: Bool[Array, "B S"],
    nodes: KV,
    mask: Bool[Array, "B W N"],
) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K G W 1"]]:
    """Attention of W queries of each head over the visible rows of the prefix and the visible nodes; float32.

    It also returns the log-sum-exp of each query's scores.

    All scores are held at once. That is fastest on a CPU with short caches. GPUs use this form too, because we could
    neither measure nor estimate whether another is faster there.
    """
    scale = query.shape[-1] ** -0.5

    def dot(a, b):
        return jnp.einsum("bkgwh,bkhs->bkgws", a, b.astype(a.dtype), preferred_element_type=jnp.float32) * scale

    low = jnp.finfo(jnp.float32).min
    over_prefix = jnp.where(in_prefix[:, None, None, None], dot(query, prefix.k), low)
    over_nodes = jnp.where(mask[:, None, None], dot(query, nodes.k), low)
    peak = jnp.maximum(over_prefix.max(-1, keepdims=True), over_nodes.max(-1, keepdims=True))
    over_prefix, over_nodes = jnp.exp(over_prefix - peak), jnp.exp(over_nodes - peak)
    total = over_prefix.sum(-1, keepdims=True) + over_nodes.sum(-1, keepdims=True)

    def mix(w, v):
        return jnp.einsum("bkgws,bksh->bkgwh", w.astype(v.dtype), v, preferred_element_type=jnp.float32)

    return (mix(over_prefix, prefix.v) + mix(over_nodes, nodes.v)) / total, peak + jnp.log(total)


def attend_in_cudnn(
    query: Float[Array, "B K G W H"],
    prefix: KV,
    in_prefix: Bool[Array, "B S"],
    nodes: KV,
    mask: Bool[Array, "B W N"],
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B K G W H"]:
    """`attend_plainly` by cuDNN's fused attention, in the dtype of the queries, bfloat16 or float16.

    It copies the layer's keys and values, whose layout it does not share. `implementation` is for tests: XLA's runs
    everywhere.
    """
    batch, _, _, width, dim = query.shape
    key, value = jnp.concatenate([prefix.k, nodes.k], axis=3), jnp.concatenate([prefix.v, nodes.v], axis=2)
    seen = jnp.concatenate([jnp.broadcast_to(in_prefix[:, None], (*mask.shape[:2], in_prefix.shape[1])), mask], axis=2)
    out = jax.nn.dot_product_attention(
        query.reshape(batch, -1, width, dim).swapaxes(1, 2),
        key.transpose(0, 3, 1, 2),
        value.swapaxes(1, 2),
        mask=seen[:, None],
        implementation=implementation,
    )
    return out.swapaxes(1, 2).reshape(query.shape)


def attend_to_split_rows(
    query: Float[Array, "B K G W H"],
    prefix: KV,
    cached: Int[Array, " B"],
    nodes: KV,
    mask: Bool[Array, "B W N"],
) -> Float[Array, "B K G W H"]:
    """Attention over a cache whose rows are split over devices (`split_rows`), and over the visible nodes; float32."""
    queries, row = attention_kernel.QUERY_AXES, ("batch",)
    group_is_split = split_rows.AXIS in sharded_axes("query_group", query.shape[2])

    def on_one_device(query: Array, prefix: KV, cached: Array, nodes: KV, mask: Array) -> Array:
        held = split_rows.of_first(cached)

        def attend(query: Array, is_first: Array) -> tuple[Array, Array]:
            seen = mask & is_first
            if attention_kernel.fits(query.shape, capacity((prefix,))):
                out, log_total = attention_kernel.attend_on_one_chip(query, prefix, nodes, held, seen, residuals=True)
                assert log_total is not None
                return out, log_total
            return attend_plainly(query, prefix, jnp.arange(capacity((prefix,))) < held[:, None], nodes, seen)

        return split_rows.combine(query, attend, group_is_split=group_is_split)

    arrays = ((query, queries), (prefix, axes), (cached, row), (nodes, NODE_AXES), (mask, row))
    return on_each_device(on_one_device, *arrays, out=(query, queries))


def causal_mask(batch: int, width: int) -> Bool[Array, "B W W"]:
    """Each of `width` tokens sees itself and the tokens before it."""
    return jnp.broadcast_to(jnp.tril(jnp.ones((width, width), bool)), (batch, width, width))


def attend_to(
    config: LlamaConfig,
    positions: Int[Array, "B W"],
    mask: Bool[Array, "B W N"],
    cached: Int[Array, " B"],
    rows: int,
    slots: Int[Array, "B W"] | None = None,
) -> Attend:
    """Builds the `Attend` of nodes at `positions` over the first `cached` rows of a cache of `rows` rows."""
    cos, sin = rotary(config, positions)
    prefix = jnp.arange(rows) < cached[:, None]
    return Attend(cos=cos, sin=sin, cached=cached, prefix=prefix, mask=mask, slots=slots)
