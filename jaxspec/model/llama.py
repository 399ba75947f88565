"""The LLaMA model. One forward function serves prefill, plain decoding, drafting and tree verification.

Weights are in `nnx.Module`s, which are pytrees; the computation is plain functions. Layers are separate arrays in a
Python loop. A scan over stacked weights is two to three times slower on a CPU.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model import backend
from jaxspec.model.attention import Attend, Attention, attend_to, attention, project
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV, capacity
from jaxspec.model.linear import Linear, linear, never_alone, rms_norm, settled
from jaxspec.model.mlp import MLP, MixtureOfExperts, mlp
from jaxspec.model.rope import rotary
from jaxspec.model.sharding import constrain

STREAM = ("batch", None, "embed")
"""Logical axes of the residual stream. They are enforced: the partitioner might shard D, and then each norm would need
an all-reduce."""


class Layer(nnx.Module):
    """One decoder layer: x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        input_norm: whether there is a norm before attention; EAGLE's layer has none.
        attention_reads: width of the input of attention; None: D, the residual stream's.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        config: LlamaConfig,
        dtype: jnp.dtype,
        *,
        input_norm: bool = True,
        attention_reads: int | None = None,
    ):
        norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",)) if input_norm else None
        self.attention_norm = norm
        self.attention = Attention(rngs, config, dtype, attention_reads)
        self.mlp_norm = nnx.Param(jnp.ones((config.hidden_size,), dtype), axes=("embed",))
        self.mlp: Any = (MixtureOfExperts if config.num_experts else MLP)(rngs, config, dtype)


class Llama(nnx.Module):
    """Weights of a LLaMA, random until loaded. `head` is None if the LM head is the transposed embedding.

    Attributes:
        draft_vocabulary: mask of the tokens whose columns the LM head has (`drafters/draft_vocabulary.py`); only for a
            draft model. None: all tokens.
    """

    draft_vocabulary: str | None = None

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
    """Results of one forward pass over W tokens."""

    hidden: Float[Array, "B W D"]  # after the final RMSNorm: the feature
    nodes: tuple[KV, ...]  # keys and values of the N nodes, one a layer
    taps: tuple[Float[Array, "B W D"], ...]  # inputs of the tapped layers


def attention_input(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The input of the layer's attention: the residual stream, after the layer's norm if it has one."""
    return x if layer.attention_norm is None else rms_norm(x, layer.attention_norm[...], config.norm_eps)


def keys_and_values(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], positions: Int[Array, "B W"]) -> KV:
    """Keys and values of one layer's inputs, without the layer's output."""
    _, key, value = project(layer.attention, config, attention_input(layer, config, x), *rotary(config, positions))
    return KV(k=key.swapaxes(2, 3), v=value)


@partial(jax.jit, static_argnames="config")
def decoder_layer(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """One decoder layer on the residual stream; `prefix` and `nodes` are this layer's.

    It has a `jit` of its own, so that layers of the same shape are traced once. The compiled program is the same.
    """
    x, nodes = attention_block(layer, config, x, attend, prefix, nodes)
    return mlp_block(layer, config, x), nodes


def attention_block(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"], attend: Attend, prefix: KV, nodes: KV | None
) -> tuple[Float[Array, "B W D"], KV]:
    """The first half of a decoder layer: attention, added to the residual stream."""
    mixed, nodes = attention(layer.attention, config, attention_input(layer, config, x), attend, prefix, nodes)
    return constrain(x + mixed, *STREAM), nodes


def mlp_block(layer: Layer, config: LlamaConfig, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
    """The second half of a decoder layer: the MLP, added to the residual stream."""
    return constrain(x + mlp(layer.mlp, rms_norm(x, layer.mlp_norm[...], config.norm_eps)), *STREAM)


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
        mask: token w sees node n (its ancestors and itself). A causal mask makes this prefill, a 1 x 1 mask plain
            decoding.
        cache: one KV per layer, S rows; only the first `cached` rows of each sequence are visible.
        nodes: keys and values of the N nodes, with those of earlier forwards of the same round; None: the W tokens are
            all the nodes.
        slots: index of each of the W tokens among the N nodes; needed with `nodes`.
        taps: layers whose inputs to return. Tap i is `hidden_states[i]` of Hugging Face, i < num_layers.
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
        cache: one KV for each layer of the whole model.
        nodes: one KV for each of these layers; None: the W tokens are all the nodes.
        taps: those of these layers whose inputs to return.

    Returns:
        the residual stream, the nodes' keys and values for each of these layers, and the tapped inputs.
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
    """Token embeddings. An id outside the vocabulary reads the nearest row: in a draft model with fewer rows than its
    target. Other inputs are checked before."""
    return look_up(model.embedding, tokens)


def look_up(table: nnx.Param, tokens: Int[Array, "B W"]) -> Float[Array, "B W D"]:
    """Rows of a table of embeddings.

    A single token is padded to two where XLA would gather a sharded table for it.
    """
    alone = tokens.size == 1 and backend.gathers_table_for_one_token()
    asked = jnp.pad(tokens, [(0, 0), (0, 1)]) if alone else tokens
    return constrain(table[...].at[asked].get(mode="clip"), *STREAM)[:, : tokens.shape[1]]


def unembed(model: Llama, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Logits of features, float32."""
    if model.head is not None:
        return lm_head(hidden, model.head)
    return settled(never_alone(hidden, lambda x: x @ model.embedding[...].astype(x.dtype).T)).astype(jnp.float32)


def lm_head(hidden: Float[Array, "*B D"], head: Linear) -> Float[Array, "*B V"]:
    """Logits of the V columns of an LM head, float32."""
    return settled(linear(hidden, head)).astype(jnp.float32)
