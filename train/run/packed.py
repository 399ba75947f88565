"""The model on packed windows: all tokens at once, with attention to earlier tokens of the same document."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxspec.model.attention import over_documents
from jaxspec.model.llama import Llama, Output
from jaxspec.model.rope import rotary
from jaxspec.train.data.text import Windows


def read(model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], taps: Sequence[int] = ()) -> Output:
    """The model's forward pass over windows: features, keys and values of all tokens, and inputs of the layers `taps`.

    `segment` is the number of each token's document.
    """
    return model(tokens, positions(segment), [over_documents(segment)] * len(model.layers), taps)


def hidden_states(
    model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], keep: Bool[Array, " L"] | None = None
) -> Float[Array, "B T D"]:
    """The hidden states after the final norm; a target's features.

    `keep` tells which layers run (None: all); the others pass their input on.
    """
    if keep is None:
        return read(model, tokens, segment).hidden
    x, angles, attend = model.embed(tokens), rotary(model.config, positions(segment)), over_documents(segment)
    for i, layer in enumerate(model.layers):
        x = jax.lax.cond(keep[i], lambda x, layer=layer: layer(x, angles, attend)[0], lambda x: x, x)
    return model.final_norm(x)


def target_features(
    target: Llama, batch: Windows, taps: Sequence[int] = ()
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...]]:
    """The target's features, and the inputs of the layers `taps`: those stored in the batch, or computed here.

    No gradient flows through them.
    """
    if batch.features is not None:
        return jnp.asarray(batch.features), tuple(map(jnp.asarray, batch.taps))
    out = jax.lax.stop_gradient(read(target, jnp.asarray(batch.tokens), jnp.asarray(batch.segment), taps))
    return out.hidden, out.taps


def ahead(x: Shaped[Array, "B T *V"], by: int, otherwise: int = 0) -> Shaped[Array, "B T *V"]:
    """The value `by` tokens later; `otherwise` after the last one."""
    return jnp.pad(x, [(0, 0), (0, by), *[(0, 0)] * (x.ndim - 2)], constant_values=otherwise)[:, by:]


def positions(segment: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The position of each token in its document, whose tokens are contiguous, from its first one in the window."""
    index = jnp.arange(segment.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], axis=1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
