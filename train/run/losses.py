"""Losses, summed over the tokens that count, so that a batch can be computed in parts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Key

from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation

Params = Any  # a pytree of float32 arrays: an nnx.Module
Sums = dict[str, Float[Array, ""]]
Summed = tuple[Float[Array, ""], Sums]
"""The loss, and further sums over the same tokens; `count` is their number, `NAME/rows` that of NAME if it differs."""
Loss = Callable[[Params, Any, Windows, Key[Array, ""] | None], Summed]
"""(parameters, frozen model, batch, key) → summed loss. Without a key there is no noise and no dropout."""


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
    taught = jax.nn.softmax(target_logits / objective.teacher_temperature)
    return optax.kl_divergence(jax.nn.log_softmax(draft_logits), taught)


def counted_next(batch: Windows) -> Bool[Array, "B next"]:
    """Whether the prediction of each next token counts: not that of a document's first token from another document."""
    segment = jnp.asarray(batch.segment)
    return jnp.asarray(batch.counted)[:, 1:] & (segment[:, 1:] == segment[:, :-1])


def _over_counted(each: Float[Array, "B next"], batch: Windows) -> Summed:
    """The sum of the losses of all tokens but the first, over the tokens that count."""
    counted = counted_next(batch)
    return (each * counted).sum(), {"count": counted.sum().astype(jnp.float32)}
