"""The target: a LLaMA whose one forward serves prefill, plain decoding, drafting and tree verification.

Weights live in `nnx.Module`s, which are pytrees; the computation is plain functions. Layers are separate arrays and a
Python loop, not a scan over stacked weights, which is two to three times slower on a CPU.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec import quantize
from jaxspec.cache import KV, capacity, write_nodes
from jaxspec.config import LlamaConfig, Rope
from jaxspec.mesh import constrain
from jaxspec.quantize import QuantizedKernel

STREAM = ("batch", None, "embed")
"""Logical axes of the residual stream. Held to, since the partitioner may cut its width, and then each norm asks all
chips for a sum."""


class Linear(nnx.Module):
    """y = x @ kernel + bias; kernel [in, out], quantised or not, bias [out] or None."""

    kernel: nnx.Param | QuantizedKernel

    def __init__(self, rngs: nnx.Rngs, shape: tuple[int, int], axes: tuple[str, str], *, bias: bool, dtype: jnp.dtype):
        scale = 1 / math.sqrt(shape[0])
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * jnp.asarray(scale, dtype), axes=axes)
        self.bias = nnx.Param(jnp.zeros(shape[1:], dtype), axes=axes[1:]) if bias else None


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype):
        c, heads, kv = config, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q = Linear(rngs, (c.hidden_size, heads), ("embed", "heads"), bias=c.qkv_bias, dtype=dtype)
        self.k = Linear(rngs, (c.hidden_size, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.v = Linear(rngs, (c.hidden_size, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.o = Linear(rngs, (heads, c.hidden_size), ("heads", "embed"), bias=c.output_bias, dtype=dtype)


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype):
        wide, narrow = (config.hidden_size, config.intermediate_size), (config.intermediate_size, config.hidden_size)
        self.gate = Linear(rngs, wide, ("embed", "mlp"), bias=config.mlp_bias, dtype=dtype)
        self.up = Linear(rngs, wide, ("embed", "mlp"), bias=config.mlp_bias, dtype=dtype)
        self.down = Linear(rngs, narrow, ("mlp", "embed"), bias=config.mlp_bias, dtype=dtype)


class Layer(nnx.Module):
    """One decoder layer: x + attention(norm(x)), then x + mlp(norm(x)). EAGLE's has no norm before attention: None."""

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, *, input_norm: bool = True):
        norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",)) if input_norm else None
        self.attention_norm = norm
        self.attention = Attention(rngs, config, dtype)
        self.mlp_norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",))
        self.mlp = MLP(rngs, config, dtype)


class Llama(nnx.Module):
    """Weights of a LLaMA, random until loaded. `head` is None where the embedding is tied."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.dtype("float32")):
        self.config = config
        vocab, width = config.vocab_size, config.hidden_size
        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (vocab, width), dtype), axes=("vocab", "embed"))
        self.layers = nnx.List([Layer(rngs, config, dtype) for _ in range(config.num_layers)])
        self.norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",))
        head = (
            None if config.tie_embeddings else Linear(rngs, (width, vocab), ("embed", "vocab"), bias=False, dtype=dtype)
        )
        self.head = head


@chex.dataclass(frozen=True)
class Output:
    """What one forward computed for W nodes."""

    hidden: Float[Array, "B W D"]  # after the final RMSNorm: the feature
    nodes: tuple[KV, ...]  # keys and values of the N nodes, one a layer
    taps: tuple[Float[Array, "B W D"], ...]  # inputs of the tapped layers


@dataclasses.dataclass(frozen=True)
class Attend:
    """What the nodes of one forward may look at, the same for every layer.

    Attributes:
        cos, sin: [B W H/2] float32, rotary tables of the nodes' positions.
        prefix: [B S] bool, the rows of the cache that hold committed tokens.
        mask: [B W N] bool, node w sees node n (its ancestors and itself).
        slots: [B W], where in the N nodes these W stand; None where W = N and they are all of them.
    """

    cos: Float[Array, "B W h"]
    sin: Float[Array, "B W h"]
    prefix: Bool[Array, "B S"]
    mask: Bool[Array, "B W N"]
    slots: Int[Array, "B W"] | None = None


def linear(x: Float[Array, "*B I"], layer: Linear) -> Float[Array, "*B O"]:
    """The one place where activations meet weights."""
    kernel = layer.kernel
    quantized = isinstance(kernel, QuantizedKernel)
    y = quantize.product(x, kernel) if quantized else product(x, kernel[...].astype(x.dtype))
    return y if layer.bias is None else y + layer.bias[...].astype(x.dtype)


@jax.custom_vjp
def product(x: Float[Array, "*B I"], kernel: Float[Array, "I O"]) -> Float[Array, "*B O"]:
    """x @ kernel. Its gradient is spelt out for CPUs, where JAX's own takes half as long again for the kernel's."""
    return x @ kernel


def _product_forward(x, kernel):
    return x @ kernel, (x, kernel)


def _product_backward(inputs, slope):
    x, kernel = inputs
    flat = lambda y: y.reshape(-1, y.shape[-1])
    return slope @ kernel.T, (flat(slope).T @ flat(x)).T


product.defvjp(_product_forward, _product_backward)


def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*B D"]:
    """RMSNorm computed in float32 (arXiv:1910.07467)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (scale.astype(x.dtype) * wide.astype(x.dtype)).astype(x.dtype)


def rope_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """[H/2] float32 radians per position, scaled as `rope` says."""
    frequency = 1.0 / np.float32(rope.theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope.scaling == "linear":
        return frequency / np.float32(rope.factor)
    if rope.scaling == "llama3":
        wavelength = 2 * np.pi / frequency
        blend = (rope.original_length / wavelength - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        blend = np.clip(blend, 0.0, 1.0).astype(np.float32)
        return ((1 - blend) / rope.factor + blend).astype(np.float32) * frequency
    return frequency


def rotary(config: LlamaConfig, positions: Int[Array, "B W"]) -> tuple[Float[Array, "B W h"], Float[Array, "B W h"]]:
    """Tables of cosines and sines for `rotate`, float32."""
    angle = positions[..., None].astype(jnp.float32) * rope_frequencies(config.rope, config.head_dim)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: Float[Array, "B W K G H"], cos: Float[Array, "B W h"], sin: Float[Array, "B W h"]
) -> Float[Array, "B W K G H"]:
    """Rotates the two halves of each head against each other (Hugging Face's layout), in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, None], sin[:, :, None, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def project(
    p: Attention, config: LlamaConfig, x: Float[Array, "B W D"], cos: Float[Array, "B W h"], sin: Float[Array, "B W h"]
) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K W H"], Float[Array, "B K W H"]]:
    """Queries, keys and values, rotated; G query heads share each of the K key heads."""
    split = lambda y: y.reshape(*y.shape[:2], config.num_kv_heads, -1, config.head_dim)
    query = rotate(split(linear(x, p.q)), cos, sin).transpose(0, 2, 3, 1, 4)
    key = rotate(split(linear(x, p.k)), cos, sin)[:, :, :, 0].swapaxes(1, 2)
    return query, key, split(linear(x, p.v))[:, :, :, 0].swapaxes(1, 2)


def attention(
    p: Attention, config: LlamaConfig, x: Float[Array, "B W D"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """Attention over [committed prefix ; tree nodes], the two kept apart so that the cache is only read.

    `prefix` (S rows) and `nodes` (N rows) hold this layer alone; returns the nodes with the new keys and values.
    """
    batch, width, _ = x.shape
    query, key, value = project(p, config, x, attend.cos, attend.sin)
    new = KV(k=key.swapaxes(2, 3), v=value)
    if nodes is None:
        nodes = new
    else:
        assert attend.slots is not None, "the slots of the new nodes among the old are needed"
        nodes = write_nodes(nodes, new, attend.slots)

    scale = config.head_dim**-0.5
    dot = lambda a, b: jnp.einsum("bkgwh,bkhs->bkgws", a, b.astype(a.dtype), preferred_element_type=jnp.float32) * scale
    low = jnp.finfo(jnp.float32).min
    over_prefix = jnp.where(attend.prefix[:, None, None, None], dot(query, prefix.k), low)
    over_nodes = jnp.where(attend.mask[:, None, None], dot(query, nodes.k), low)
    peak = jnp.maximum(over_prefix.max(-1, keepdims=True), over_nodes.max(-1, keepdims=True))
    over_prefix, over_nodes = jnp.exp(over_prefix - peak), jnp.exp(over_nodes - peak)
    total = over_prefix.sum(-1, keepdims=True) + over_nodes.sum(-1, keepdims=True)
    mix = lambda w, v: jnp.einsum("bkgws,bksh->bkgwh", w.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = (mix(over_prefix, prefix.v) + mix(over_nodes, nodes.v)) / total
    out = out.astype(x.dtype).transpose(0, 3, 1, 2, 4).reshape(batch, width, -1)
    return linear(out, p.o), nodes


def mlp(p: MLP, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """SwiGLU: down(silu(gate(x)) * up(x))."""
    return linear(jax.nn.silu(linear(x, p.gate)) * linear(x, p.up), p.down)


def attention_input(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The residual stream, normalised where the layer has a norm for it."""
    return x if layer.attention_norm is None else rms_norm(x, layer.attention_norm[...], config.norm_eps)


def keys_and_values(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], positions: Int[Array, "B W"]) -> KV:
    """What a layer shows of its inputs to later ones, where nobody asks for its output."""
    _, key, value = project(layer.attention, config, attention_input(layer, config, x), *rotary(config, positions))
    return KV(k=key.swapaxes(2, 3), v=value)


def decoder_layer(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """One decoder layer on the residual stream; `prefix` and `nodes` hold this layer alone."""
    x, nodes = attention_block(layer, config, x, attend, prefix, nodes)
    return mlp_block(layer, config, x), nodes


def attention_block(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """The first half of a decoder layer: attention, added to the residual stream."""
    mixed, nodes = attention(layer.attention, config, attention_input(layer, config, x), attend, prefix, nodes)
    return constrain(x + mixed, *STREAM), nodes


def mlp_block(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The second half."""
    return constrain(x + mlp(layer.mlp, rms_norm(x, layer.mlp_norm[...], config.norm_eps)), *STREAM)


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
    return Attend(cos=cos, sin=sin, prefix=jnp.arange(rows) < cached[:, None], mask=mask, slots=slots)


def forward(
    model: Llama,
    tokens: Int[Array, "B W"],
    positions: Int[Array, "B W"],
    mask: Bool[Array, "B W N"],
    cache: tuple[KV, ...],
    cached: Int[Array, " B"],
    *,
    nodes: tuple[KV, ...] | None = None,
    slots: Int[Array, "B W"] | None = None,
    taps: tuple[int, ...] = (),
) -> Output:
    """Runs W tokens over a committed prefix and their own ancestors. The cache is read, never written.

    Args:
        positions: rotary position of each token.
        mask: token w sees node n; ancestors and itself. A causal mask makes this prefill, a 1 x 1 mask plain decoding.
        cache: a KV a layer, S rows; only the first `cached` rows of each sequence are seen.
        nodes: keys and values of nodes that an earlier forward of the same round computed; None: the W tokens are all.
        slots: where the W tokens stand among the N nodes; needed with `nodes`.
        taps: layers whose input to return. Tap i is what Hugging Face calls `hidden_states[i]`, i < num_layers.
    """
    attend = attend_to(model.config, positions, mask, cached, capacity(cache), slots)
    every = range(model.config.num_layers)
    x, filled, tapped = run_layers(model, every, embed(model, tokens), attend, cache, nodes, taps)
    return Output(hidden=final_norm(model, x), nodes=filled, taps=tapped)


def run_layers(
    model: Llama,
    layers: range,
    x: Float[Array, "B W D"],
    attend: Attend,
    cache: tuple[KV, ...],
    nodes: tuple[KV, ...] | None,
    taps: tuple[int, ...] = (),
) -> tuple[Float[Array, "B W D"], tuple[KV, ...], tuple[Float[Array, "B W D"], ...]]:
    """Some of the model's layers on the residual stream.

    Args:
        cache: of the whole model.
        nodes: of these layers alone, as what is returned; None: the W tokens are all the nodes.
        taps: layers among these whose input to return.

    Returns:
        the residual stream, keys and values of the nodes a layer, the tapped inputs.
    """
    filled, tapped = [], {}
    for at, i in enumerate(layers):
        if i in taps:
            tapped[i] = x
        x, new = decoder_layer(model.layers[i], model.config, x, attend, cache[i], None if nodes is None else nodes[at])
        filled.append(new)
    return x, tuple(filled), tuple(tapped[i] for i in taps)


def final_norm(model: Llama, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The feature: the residual stream after the last layer, normalised for the LM head."""
    return constrain(rms_norm(x, model.norm[...], model.config.norm_eps), *STREAM)


def embed(model: Llama, tokens: Int[Array, "B W"]) -> Float[Array, "B W D"]:
    """Token embeddings; an id outside the vocabulary reads the nearest row and is refused long before this point."""
    return constrain(model.embedding[...].at[tokens].get(mode="clip"), *STREAM)


def unembed(model: Llama, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Logits, float32, of final hidden states."""
    if model.head is None:
        logits = hidden @ model.embedding[...].astype(hidden.dtype).T
    else:
        logits = linear(hidden, model.head)
    return logits.astype(jnp.float32)
