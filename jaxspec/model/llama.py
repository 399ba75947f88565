"""The LLaMA model: attention, MLP or mixture of experts, decoder layer, and the whole.

One forward pass serves prefill, plain decoding, drafting, tree verification and training: what differs is the attention
that each layer gets as a function (`attention.py`). Layers are separate arrays in a Python loop, because a scan over
stacked weights is slower on a CPU.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model import backend
from jaxspec.model.attention import Attend, over_cache, visible
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV, capacity
from jaxspec.model.layers import Linear, RMSNorm, fusion_barrier, multiply_padded, product
from jaxspec.model.rope import rotary, rotate
from jaxspec.model.sharding import constrain

STREAM = ("batch", None, "embed")
"""Logical axes of the residual stream. They are enforced: the partitioner might shard D, and then each norm would need
an all-reduce."""

Angles = tuple[Float[Array, "B W h"], Float[Array, "B W h"]]
"""Cosines and sines of the tokens' rotary positions, from `rope.rotary`; h is half the width of a head."""


class Attention(nnx.Module):
    """One layer's attention: projections around a function that attends.

    Its output goes to the residual stream. `width` is the width I of its input; None: the residual stream's.
    """

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, width: int | None = None):
        c, heads, kv = config, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        width = c.hidden_size if width is None else width
        self.kv_heads, self.head_dim = c.num_kv_heads, c.head_dim
        self.q = Linear(rngs, (width, heads), ("embed", "heads"), bias=c.qkv_bias, dtype=dtype)
        self.k = Linear(rngs, (width, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.v = Linear(rngs, (width, kv), ("embed", "kv_heads"), bias=c.qkv_bias, dtype=dtype)
        self.o = Linear(rngs, (heads, c.hidden_size), ("heads", "embed"), bias=c.output_bias, dtype=dtype)
        self.q_norm = RMSNorm(c.head_dim, c.norm_eps, dtype, None) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.norm_eps, dtype, None) if c.qk_norm else None

    def __call__(self, x: Float[Array, "B W I"], angles: Angles, attend: Attend) -> tuple[Float[Array, "B W D"], Any]:
        """The update of the residual stream, and what `attend` keeps of this layer."""
        mixed, kept = attend(*self.project(x, angles))
        joined = mixed.astype(x.dtype).transpose(0, 3, 1, 2, 4).reshape(*x.shape[:2], -1)
        return self.o(joined), kept

    def project(
        self, x: Float[Array, "B W I"], angles: Angles
    ) -> tuple[Float[Array, "B K G W H"], Float[Array, "B K W H"], Float[Array, "B K W H"]]:
        """Queries, keys and values. G query heads share each of the K KV heads.

        Queries and keys are rotated, after their RMSNorm if the layer has one. All are rounded to the dtype of x.
        """

        def split(y):
            y = fusion_barrier(y)
            return y.reshape(*y.shape[:2], self.kv_heads, -1, self.head_dim)

        normed = lambda y, norm: y if norm is None else norm.in_float32(y)
        query = rotate(normed(split(self.q(x)), self.q_norm), *angles).transpose(0, 2, 3, 1, 4)
        key = rotate(normed(split(self.k(x)), self.k_norm), *angles)[:, :, :, 0].swapaxes(1, 2)
        value = split(self.v(x))[:, :, :, 0].swapaxes(1, 2)
        return query.astype(x.dtype), key.astype(x.dtype), value.astype(x.dtype)


class MLP(nnx.Module):
    """down(silu(gate(x)) * up(x)) (arXiv:2002.05202). With `experts`: as many MLPs, with kernels [experts, in, out]."""

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype, experts: int | None = None):
        lead, name = ((), ()) if experts is None else ((experts,), ("expert",))
        wide, narrow = (config.hidden_size, config.intermediate_size), (config.intermediate_size, config.hidden_size)
        make = lambda shape, axes: Linear(rngs, (*lead, *shape), (*name, *axes), bias=config.mlp_bias, dtype=dtype)
        self.gate = make(wide, ("embed", "mlp"))
        self.up = make(wide, ("embed", "mlp"))
        self.down = make(narrow, ("mlp", "embed"))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The update of the residual stream, float32."""
        gated = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(fusion_barrier(gated.astype(x.dtype)))


class MixtureOfExperts(nnx.Module):
    """The weighted sum of the outputs of each token's selected experts (Mixtral, arXiv:2401.04088, §2.1).

    The router selects them and their weights; it is never quantised. A forward pass over few tokens, as in plain
    decoding, reads only the experts that these tokens select. One over more tokens runs all experts, because together
    the tokens select nearly all of them.
    """

    def __init__(self, rngs: nnx.Rngs, config: LlamaConfig, dtype: jnp.dtype):
        self.count, self.per_token = config.num_experts, config.experts_per_token
        shape = (config.hidden_size, config.num_experts)
        self.router = Linear(rngs, shape, ("embed", "expert"), bias=False, dtype=dtype)
        self.experts = MLP(rngs, config, dtype, config.num_experts)

    def __call__(self, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        tokens = x.reshape(-1, x.shape[-1])
        share, chosen = self.route(tokens)
        run = run_selected if chosen.size < self.count else run_all
        return run(self.experts, tokens, share, chosen).reshape(x.shape)

    def route(
        self, tokens: Float[Array, "tokens D"]
    ) -> tuple[Float[Array, "tokens selected"], Int[Array, "tokens selected"]]:
        """Weights (the router's softmax, renormalised; float32) and indices of the experts selected for each token."""
        probs = jax.nn.softmax(self.router(tokens), axis=-1)
        share, chosen = jax.lax.top_k(probs, self.per_token)
        return share / share.sum(axis=-1, keepdims=True), chosen


def run_selected(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens selected"],
    chosen: Int[Array, "tokens selected"],
) -> Float[Array, "tokens D"]:
    """Runs the selected experts only, token by token, so that no other expert's weights are read."""

    def run(token: int, choice: int) -> Float[Array, "1 D"]:
        take = lambda stack: jax.lax.dynamic_index_in_dim(stack, chosen[token, choice], 0, keepdims=False)
        out = jax.tree.map(take, experts)(tokens[token : token + 1])
        return out * share[token, choice]

    count, selected = chosen.shape
    return jnp.concatenate([sum(run(token, choice) for choice in range(selected)) for token in range(count)])


def run_all(
    experts: MLP,
    tokens: Float[Array, "tokens D"],
    share: Float[Array, "tokens selected"],
    chosen: Int[Array, "tokens selected"],
) -> Float[Array, "tokens D"]:
    """Runs every expert on every token; experts that a token did not select have weight 0."""
    outs = jax.vmap(lambda expert: expert(tokens))(experts)
    shares = (jax.nn.one_hot(chosen, outs.shape[0], dtype=jnp.float32) * share[..., None]).sum(axis=1)
    return jnp.einsum("end,ne->nd", outs, shares, precision="highest")


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
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype) if input_norm else None
        self.attention = Attention(rngs, config, dtype, attention_reads)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, dtype)
        self.mlp: Any = (MixtureOfExperts if config.num_experts else MLP)(rngs, config, dtype)

    def __call__(self, x: Float[Array, "B W D"], angles: Angles, attend: Attend) -> tuple[Float[Array, "B W D"], Any]:
        """The residual stream after the layer, and what `attend` keeps."""
        return decoder_layer(self, x, angles, attend)

    def attention_block(
        self, x: Float[Array, "B W D"], angles: Angles, attend: Attend
    ) -> tuple[Float[Array, "B W D"], Any]:
        """The first half of the layer: attention, added to the residual stream."""
        mixed, kept = self.attention(self.attention_input(x), angles, attend)
        return constrain(x + mixed, *STREAM), kept

    def mlp_block(self, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        """The second half of the layer: the MLP, added to the residual stream."""
        return constrain(x + self.mlp(self.mlp_norm(x)), *STREAM)

    def attention_input(self, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        """The residual stream, after the layer's norm if it has one, in the dtype of the layer's weights."""
        return x.astype(self.mlp_norm.dtype) if self.attention_norm is None else self.attention_norm(x)

    def keys_and_values(self, x: Float[Array, "B W D"], angles: Angles) -> KV:
        """Keys and values of the layer's inputs, without its output."""
        _, key, value = self.attention.project(self.attention_input(x), angles)
        return KV(k=key.mT, v=value)


@jax.jit
def decoder_layer(
    layer: Layer, x: Float[Array, "B W D"], angles: Angles, attend: Attend
) -> tuple[Float[Array, "B W D"], Any]:
    """`Layer.__call__`, jitted so that layers of the same shape are traced once. The compiled program is the same."""
    x, kept = layer.attention_block(x, angles, attend)
    return layer.mlp_block(x), kept


@chex.dataclass(frozen=True)
class Output:
    """Results of one forward pass over W tokens."""

    hidden: Float[Array, "B W D"]  # after the final RMSNorm: the feature
    nodes: tuple[Any, ...]  # what each layer's attention keeps: in decoding keys and values of the N nodes
    taps: tuple[Float[Array, "B W D"], ...]  # inputs of the tapped layers, in the dtype of the weights


class Llama(nnx.Module):
    """A LLaMA, with random weights until loaded. `lm_head` is None if it is the transposed embedding."""

    draft_vocabulary: str | None = None  # of a draft model: mask of the tokens whose columns the LM head has

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.dtype("float32")):
        self.config = config
        vocab, width = config.vocab_size, config.hidden_size
        self.embedding = nnx.Param(jax.random.normal(rngs.params(), (vocab, width), dtype), axes=("vocab", "embed"))
        self.layers = nnx.List([Layer(rngs, config, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(width, config.norm_eps, dtype)
        tied = config.tie_embeddings
        self.lm_head = None if tied else Linear(rngs, (width, vocab), ("embed", "vocab"), bias=False, dtype=dtype)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the weights that are not quantised, of the inputs of products, and of caches."""
        return self.norm.dtype

    def __call__(
        self,
        tokens: Int[Array, "B W"],
        positions: Int[Array, "B W"],
        attends: Sequence[Attend],
        taps: Iterable[int] = (),
    ) -> Output:
        """Runs W tokens through all layers.

        Args:
            positions: rotary position of each token.
            attends: the attention of each layer.
            taps: layers whose inputs to return. Tap i is `hidden_states[i]` of Hugging Face, i < num_layers.
        """
        x, kept, inputs = run_layers(self.layers, self.embed(tokens), rotary(self.config, positions), attends)
        return Output(hidden=self.final_norm(x), nodes=kept, taps=self.tapped(inputs[tap] for tap in taps))

    def embed(self, tokens: Int[Array, "B W"], table: nnx.Param | None = None) -> Float[Array, "B W D"]:
        """Token embeddings, float32 as the residual stream is; from another table if one is given."""
        return look_up(self.embedding if table is None else table, tokens).astype(jnp.float32)

    def tapped(self, inputs: Iterable[Float[Array, "B W D"]]) -> tuple[Float[Array, "B W D"], ...]:
        """Inputs of layers as heads read them: rounded, and in float16 limited to its range, which some exceed."""
        limit = float(jnp.finfo(self.dtype).max)
        return tuple(jnp.clip(x, -limit, limit).astype(self.dtype) for x in inputs)

    def final_norm(self, x: Float[Array, "B W D"]) -> Float[Array, "B W D"]:
        """The feature: the residual stream after the last layer, normalised for the LM head."""
        return constrain(self.norm(x), *STREAM)

    def logits(self, hidden: Float[Array, "*B D"], lm_head: Linear | None = None) -> Float[Array, "*B V"]:
        """Logits of features, float32, by another LM head if one is given."""
        lm_head = self.lm_head if lm_head is None else lm_head
        if lm_head is not None:
            return logits_of(lm_head, hidden)
        columns, fewest = self.embedding[...].astype(hidden.dtype).T, backend.fewest_rows_of_a_table(hidden.dtype)
        return fusion_barrier(multiply_padded(hidden, lambda x: product(x, columns), fewest))


def run_layers(
    layers: Iterable[Layer], x: Float[Array, "B W D"], angles: Angles, attends: Sequence[Attend]
) -> tuple[Float[Array, "B W D"], tuple[Any, ...], list[Float[Array, "B W D"]]]:
    """The residual stream after some layers, what the attention of each keeps, and the inputs of each."""
    kept, inputs = [], []
    for layer, attend in zip(layers, attends, strict=True):
        inputs.append(x)
        x, new = layer(x, angles, attend)
        kept.append(new)
    return x, tuple(kept), inputs


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
    taps: Iterable[int] = (),
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
        taps: as in `Llama.__call__`.
    """
    return model(tokens, positions, over_cache(visible(mask, cached, capacity(cache), slots), cache, nodes), taps)


def look_up(table: nnx.Param, tokens: Int[Array, "B W"]) -> Float[Array, "B W D"]:
    """Rows of a table of embeddings. An id past its end, as a draft model may get from its target, reads the last row.

    A single token is padded to two where XLA would gather a sharded table for it.
    """
    alone = tokens.size == 1 and backend.gathers_table_for_one_token()
    rows = jnp.pad(tokens, [(0, 0), (0, 1)]) if alone else tokens
    return constrain(table[...].at[rows].get(mode="clip"), *STREAM)[:, : tokens.shape[1]]


def logits_of(lm_head: Linear, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Logits of the V columns of an LM head, float32."""
    return fusion_barrier(lm_head(hidden))
