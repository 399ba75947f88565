"""The model on packed windows: all tokens at once, with attention to earlier tokens of the same document.

It computes what `llama.forward` computes with an empty cache, but without the N x N scores: queries are processed in
blocks, and a block skips all later keys.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.model.attention import project
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import linear, rms_norm
from jaxspec.model.llama import Layer, Llama, attention_input, embed, final_norm
from jaxspec.model.mlp import mlp
from jaxspec.model.rope import rotary
from jaxspec.train.data.text import Windows

_QUERIES = 128  # queries in a block


def hidden_states(
    model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], keep: Bool[Array, " L"] | None = None
) -> Float[Array, "B T D"]:
    """The hidden states after the final norm; a target's features. Arguments as for `residual_streams`."""
    return final_norm(model, residual_streams(model, tokens, segment, keep)[-1])


def features_and_taps(
    target: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], taps: Sequence[int] = ()
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...]]:
    """The target's features, and the inputs of the layers `taps`, in one forward."""
    streams = residual_streams(target, tokens, segment)
    return final_norm(target, streams[-1]), tuple(streams[tap] for tap in taps)


def of_target(
    target: Llama, batch: Windows, taps: Sequence[int] = ()
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...]]:
    """Features and taps of a batch: those stored in it, otherwise computed here. No gradient flows through them."""
    if batch.features is not None:
        return jnp.asarray(batch.features), tuple(map(jnp.asarray, batch.taps))
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    return jax.lax.stop_gradient(features_and_taps(target, tokens, segment, taps))


def residual_streams(
    model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], keep: Bool[Array, " L"] | None = None
) -> tuple[Float[Array, "B T D"], ...]:
    """The inputs of all layers, and the output of the last layer: L + 1 arrays.

    Args:
        segment: number of each token's document.
        keep: whether each layer runs; None: all run. A layer that does not run passes its input on.
    """
    x, config = embed(model, tokens), model.config
    streams = [x]
    for i, layer in enumerate(model.layers):

        def run(x, layer=layer):
            return decoder_layer(layer, config, x, segment)

        x = run(x) if keep is None else jax.lax.cond(keep[i], run, lambda x: x, x)
        streams.append(x)
    return tuple(streams)


def decoder_layer(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B T D"], segment: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """One decoder layer on the residual stream, with causal attention inside each document."""
    into = attention_input(layer, config, x)
    query, key, value = project(layer.attention, config, into, *rotary(config, positions(segment)))

    def block(start: int, end: int) -> Array:
        return attend(query[:, :, :, start:end], key[:, :, :end], value[:, :, :end], causal(segment, start, end))

    x = x + linear(in_blocks(block, x.shape[1]), layer.attention.o)
    return x + mlp(layer.mlp, rms_norm(x, layer.mlp_norm[...], config.norm_eps))


def in_blocks(block: Callable[[int, int], Array], length: int) -> Float[Array, "B T O"]:
    """Runs `block(start, end)` for each block of queries, and joins the results [B K G queries H] to [B T K·G·H]."""
    blocks = [block(start, min(start + _QUERIES, length)) for start in range(0, length, _QUERIES)]
    out = jnp.concatenate(blocks, axis=3).transpose(0, 3, 1, 2, 4)
    return out.reshape(*out.shape[:2], -1)


def attend(
    query: Float[Array, "B K G queries H"],
    key: Float[Array, "B K keys H"],
    value: Float[Array, "B K keys H"],
    seen: Bool[Array, "B queries keys"],
) -> Float[Array, "B K G queries H"]:
    """Attention of a block of queries over the keys that `seen` permits."""
    scores = jnp.einsum("bkgwh,bksh->bkgws", query * query.shape[-1] ** -0.5, key, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bkgws,bksh->bkgwh", jax.nn.softmax(scores).astype(value.dtype), value)


def causal(segment: Int[Array, "B T"], start: int, end: int) -> Bool[Array, "B queries keys"]:
    """Causal mask inside documents, of queries `start` to `end` - 1 and keys 0 to `end` - 1."""
    before = jnp.arange(start, end)[:, None] >= jnp.arange(end)
    return before & (segment[:, start:end, None] == segment[:, None, :end])


def positions(segment: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The position of each token in its document, counted from the document's first token in the window.

    The tokens of a document must be contiguous.
    """
    index = jnp.arange(segment.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], axis=1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
