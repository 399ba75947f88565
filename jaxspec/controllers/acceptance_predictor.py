"""Cali-TS's predictor of whether the target accepts the newest draft (EESD, arXiv:2406.03853, Eq. 5).

The paper has W_p · [W^i h_T ; h_D], with W^i [D, D] for each of ten levels i and W_p [D + E, 2]. W_p and W^i are folded
into one matrix [D, 2] per level: at 70B kilobytes instead of 1.3 GB.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Drafter, Models, Prefix
from jaxspec.decoding.tree import init_tree
from jaxspec.model import kv_cache as kv
from jaxspec.model.layers import Linear

NAME = "cali-ts"
FOLDER = "calibrator"  # in the folder of the drafter's head
LEVELS = 10  # levels with their own matrix; deeper levels use the last one
INPUTS = ("hidden", "both", "top-probability")


class AcceptancePredictor(nnx.Module):
    """Logits of (rejected, accepted), linear in hidden states, the log of the top probability, or both: see INPUTS.

    The probability is their softmax; the paper prints a sigmoid of two numbers.
    """

    def __init__(
        self,
        target_hidden: int,
        draft_hidden: int,
        *,
        rngs: nnx.Rngs,
        inputs: str = "hidden",
        dtype: jnp.dtype = FLOAT32,
    ):
        hidden, top = inputs != "top-probability", inputs != "hidden"
        start = jax.random.normal(rngs.params(), (LEVELS, target_hidden, 2), dtype) * target_hidden**-0.5
        self.target = nnx.Param(start, axes=("level", "embed", "label")) if hidden else None
        of_draft = Linear(rngs, (draft_hidden, 2), ("embed", "label"), bias=False, dtype=dtype)
        self.draft = of_draft if hidden else None
        self.top = nnx.Param(jnp.zeros((2, 2), dtype), axes=(None, "label")) if top else None  # of 1 and the log

    @property
    def inputs(self) -> str:
        if self.target is None:
            return "top-probability"
        return "hidden" if self.top is None else "both"

    def __call__(
        self,
        level: Int[Array, ""],
        target_hidden: Float[Array, "B D"],
        draft_hidden: Float[Array, "B E"],
        log_top: Float[Array, " B"],
    ) -> Float[Array, "B 2"]:
        """Logits of (rejected, accepted) for the token drafted at `level`, float32.

        Args:
            level: from 1.
            target_hidden: the target's feature at the last verified position.
            draft_hidden: the drafter's hidden state that gave the token's distribution.
            log_top: log of the largest probability in that distribution.
        """
        logits = jnp.zeros((len(log_top), 2), jnp.float32)
        if self.target is not None and self.draft is not None:
            matrix = self.target[...][jnp.clip(level, 1, LEVELS) - 1]
            logits += (target_hidden.astype(matrix.dtype) @ matrix).astype(jnp.float32)
            logits += self.draft(draft_hidden.astype(matrix.dtype)).astype(jnp.float32)
        if self.top is not None:
            constant, slope = self.top[...].astype(jnp.float32)
            logits += constant + log_top[:, None] * slope
        return logits


def draft_width(drafter: Drafter, models: Models) -> int:
    """Width E of the hidden states that give a drafter's logits, traced. Raises ValueError if it has none."""

    def hidden(models: Models) -> Array:
        config, dtype = models.target.config, models.target.dtype
        root, one = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
        prefix = Prefix(token=root[:, None], length=one, cache=kv.allocate(config, 1, 1, dtype))
        drafts, _ = drafter.root(models, drafter.init(models, 1, 1), prefix, init_tree(root, 2, None))
        if drafts.hidden is None:
            raise ValueError(f"{drafter.name} has no hidden states to predict from")
        return drafts.hidden

    return jax.eval_shape(hidden, models).shape[-1]
