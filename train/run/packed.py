"""The forward pass over packed windows, in which a token sees its own document only; and losses, summed over the tokens
that count, so that a batch can be computed in parts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from jaxspec.model.attention import over_documents
from jaxspec.model.llama import Llama, Output
from jaxspec.model.rope import rotary
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation

Params = Any  # a pytree of float32 arrays: an nnx.Module
Sums = dict[str, Float[Array, ""]]
Summed = tuple[Float[Array, ""], Sums]
"""The loss, and further sums over the same tokens; `count` is their number, `NAME/rows` that of NAME if it differs."""
Loss = Callable[[Params, Any, Windows, Key[Array, ""] | None], Summed]
"""(parameters, frozen model, batch, key) → summed loss. Without a key there is no noise and no dropout."""


def read(model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], taps: Sequence[int] = ()) -> Output:
    """The forward pass over windows: features, keys and values of all tokens, and inputs of the layers `taps`."""
    return model(tokens, positions(segment), [over_documents(segment)] * len(model.layers), taps)


def hidden_states(
    model: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], keep: Bool[Array, " L"] | None = None
) -> Float[Array, "B T D"]:
    """The hidden states after the final norm. Layers outside `keep` (None: all are in it) pass their input on."""
    if keep is None:
        return read(model, tokens, segment).hidden
    x, angles, attend = model.embed(tokens), rotary(model.config, positions(segment)), over_documents(segment)
    for i, layer in enumerate(model.layers):
        x = jax.lax.cond(keep[i], lambda x, layer=layer: layer(x, angles, attend)[0], lambda x: x, x)
    return model.final_norm(x)


def target_features(
    target: Llama, batch: Windows, taps: Sequence[int] = ()
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...]]:
    """The target's features, and the inputs of the layers `taps`: those in the batch, or computed, without gradient."""
    if batch.features is not None:
        return jnp.asarray(batch.features), tuple(map(jnp.asarray, batch.taps))
    out = jax.lax.stop_gradient(read(target, jnp.asarray(batch.tokens), jnp.asarray(batch.segment), taps))
    return out.hidden, out.taps


def ahead(x: Shaped[Array, "B T *V"], by: int, otherwise: int = 0) -> Shaped[Array, "B T *V"]:
    """The value `by` tokens later; `otherwise` after the last one."""
    return jnp.pad(x, [(0, 0), (0, by), *[(0, 0)] * (x.ndim - 2)], constant_values=otherwise)[:, by:]


def positions(segment: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """The position of each token, counted from the first token of its document in the window."""
    index = jnp.arange(segment.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], axis=1)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def cross_entropy(logits: Float[Array, "B T V"], batch: Windows) -> Summed:
    """Cross-entropy of the text's next token, from the logits after each token."""
    goal = jnp.asarray(batch.tokens)[:, 1:]
    return _over_counted(optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], goal), batch)


def distil(
    objective: Distillation, draft_logits: Float[Array, "B T V"], target_logits: Float[Array, "B T V"], batch: Windows
) -> Summed:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, by `objective.goal`.

    Both logits are those after each token. Cross-entropy does not use the target's; `jax.jit` removes them.
    """
    if objective.goal == "cross-entropy":
        return cross_entropy(draft_logits, batch)
    return _over_counted(divergence(objective, draft_logits[:, :-1], target_logits[:, :-1]), batch)


def divergence(
    objective: Distillation, draft_logits: Float[Array, "*B V"], target_logits: Float[Array, "*B V"]
) -> Float[Array, "*B"]:
    """KL(target ‖ draft) of each token's distribution; `objective.teacher_temperature` divides the target's logits."""
    teacher = jax.nn.softmax(target_logits / objective.teacher_temperature)
    return optax.kl_divergence(jax.nn.log_softmax(draft_logits), teacher)


def counted_next(batch: Windows) -> Bool[Array, "B next"]:
    """Whether the prediction of each next token counts: not that of a document's first token from another document."""
    segment = jnp.asarray(batch.segment)
    return jnp.asarray(batch.counted)[:, 1:] & (segment[:, 1:] == segment[:, :-1])


def _over_counted(each: Float[Array, "B next"], batch: Windows) -> Summed:
    """The sum of the losses of all tokens but the first, over the tokens that count."""
    counted = counted_next(batch)
    return (each * counted).sum(), {"count": counted.sum().astype(jnp.float32)}
