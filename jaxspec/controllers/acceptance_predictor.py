"""Cali-TS's predictor: whether the target will accept the token just drafted (EESD, arXiv:2406.03853, Eq. 5)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Drafter, Models, Prefix
from jaxspec.decoding.tree import init_tree
from jaxspec.model import kv_cache as kv
from jaxspec.model.linear import Linear, linear
from jaxspec.model.mesh_rules import constrain

NAME = "cali-ts"
FOLDER = "calibrator"  # inside the folder of the head whose drafts it judges
LEVELS = 10  # with a matrix of their own; deeper ones share the last


class AcceptancePredictor(nnx.Module):
    """W^i [10, D, D] and W_p [D + E, 2], for D = `target_hidden` and E = `draft_hidden`, which may differ."""

    def __init__(self, target_hidden: int, draft_hidden: int, *, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32):
        shape = (LEVELS, target_hidden, target_hidden)
        scale = jnp.asarray(target_hidden**-0.5, dtype)
        self.transform = nnx.Param(
            jax.random.normal(rngs.params(), shape, dtype) * scale, axes=("level", "input", "embed")
        )
        self.head = Linear(rngs, (target_hidden + draft_hidden, 2), ("embed", "label"), bias=False, dtype=dtype)


def classify(
    weights: AcceptancePredictor,
    level: Int[Array, ""],
    target_hidden: Float[Array, "B D"],
    draft_hidden: Float[Array, "B E"],
) -> Float[Array, "B 2"]:
    """Logits of (rejected, accepted), float32: W_p [W^i h_T ; h_D] with i = min(level, 10), level from 1."""
    transform = weights.transform[...][jnp.clip(level, 1, LEVELS) - 1]
    moved = constrain(constrain(target_hidden, "batch", "embed").astype(transform.dtype) @ transform, "batch", "embed")
    both = jnp.concatenate([moved, draft_hidden.astype(transform.dtype)], axis=-1)
    return linear(both, weights.head).astype(jnp.float32)


def predict(
    weights: AcceptancePredictor,
    level: Int[Array, ""],
    target_hidden: Float[Array, "B D"],
    draft_hidden: Float[Array, "B E"],
) -> Float[Array, " B"]:
    """theta_M: the chance that the target accepts the token drafted at `level`.

    A softmax over two classes; the paper prints a sigmoid, of two numbers.

    Args:
        level: from 1.
        target_hidden: the target's feature at the last position that it verified.
        draft_hidden: the drafter's hidden state whose logits gave the token.
    """
    return jax.nn.softmax(classify(weights, level, target_hidden, draft_hidden))[:, 1]


def draft_width(drafter: Drafter, models: Models) -> int:
    """Width E of the hidden states that a drafter's logits come from. Traced only: nothing is computed.

    Raises:
        ValueError: the drafter has none.
    """

    def hidden(models: Models) -> Array:
        config, dtype = models.target.config, models.target.norm[...].dtype
        root, one = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
        prefix = Prefix(token=root[:, None], length=one, cache=kv.allocate(config, 1, 1, dtype))
        drafts, _ = drafter.root(models, drafter.init(models, 1, 1), prefix, init_tree(root, 2, None))
        if drafts.hidden is None:
            raise ValueError(f"{drafter.name} has no hidden states to predict from")
        return drafts.hidden

    return jax.eval_shape(hidden, models).shape[-1]
