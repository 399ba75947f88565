"""What a drafter's next token is to be: the target's distribution, or the text."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxspec.train.data.text import Windows
from jaxspec.train.run.trainer import Sums
from jaxspec.train.settings.objectives import Distillation


def distil(
    goal: Distillation, drafts: Float[Array, "B T V"], says: Float[Array, "B T V"], batch: Windows
) -> tuple[Float[Array, ""], Sums]:
    """KL(target ‖ draft) of the next token's distribution, or cross-entropy of the text's, over the tokens that count.

    Args:
        drafts, says: logits of the drafter and of the target after each token. Cross-entropy reads nothing of the
            target's: under `jax.jit` they are not computed then.
    """
    if goal == "forward-kl":
        each = optax.kl_divergence(jax.nn.log_softmax(drafts[:, :-1]), jax.nn.softmax(says[:, :-1]))
    else:
        each = optax.softmax_cross_entropy_with_integer_labels(drafts[:, :-1], jnp.asarray(batch.tokens)[:, 1:])
    counted = jnp.asarray(batch.counted)[:, 1:]
    return (each * counted).sum(), {"count": counted.sum().astype(jnp.float32)}
