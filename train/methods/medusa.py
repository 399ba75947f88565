"""Medusa-1's training (arXiv:2401.10774, §2.2.1): with a frozen target, each head learns to predict one token further
ahead.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.drafters.medusa import Medusa as MedusaDrafter
from jaxspec.drafters.medusa import MedusaHead, MedusaHeads, predict
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.run import heads
from jaxspec.train.run.initial_weights import copies, lm_head_of
from jaxspec.train.run.losses import Summed
from jaxspec.train.run.packed import of_target
from jaxspec.train.settings.heads import Medusa


def train(settings: Medusa) -> MedusaHeads:
    """Trains heads; see `heads.train`."""
    drafter = MedusaDrafter()
    with heads.open_job(drafter.name, settings) as job:
        shape = drafter.head_for(job.target.config.model, heads=settings.heads)
        begun = initial(job.target.target, settings.heads)
        return heads.train(job, drafter, shape, begun, partial(loss, decay=settings.decay))


def initial(target: Llama, count: int) -> MedusaHeads:
    """Heads that begin as the target's LM head, behind a residual block that does nothing yet: W and b are 0."""
    drafter = MedusaDrafter()
    blank = nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(target.config, heads=count), nnx.Rngs(0)))
    leaves = module_to_dict(blank)
    lm_heads = {name: lm_head_of(target.config) for name in leaves if name.endswith(".head.kernel")}
    zeros = {name: jnp.zeros(leaf.shape, jnp.float32) for name, leaf in leaves.items() if name not in lm_heads}
    return dict_to_module(blank, zeros | copies(module_to_dict(target), lm_heads))


def loss(model: MedusaHeads, target: Llama, batch: Windows, key: Key[Array, ""] | None, decay: float) -> Summed:
    """Σ_k decay^k · cross-entropy of what head k predicts, over the tokens that count (Eq. 1, with λ_k = decay^k).

    The paper counts heads from 1, where this counts from 0: a constant factor. `count` is the number of head 0's
    tokens; the others have a few less, at the ends of documents.

    Logits of all heads and positions would be K · [B, T, V] in float32. So the positions are cut into K blocks, one
    after another (`lax.map`), each of which computes its logits again for its gradient (`jax.checkpoint`): never are
    more alive than one head has. Taking the heads one by one instead leaves XLA free to keep them all, and it does.
    """
    (features, _), count = of_target(target, batch), len(model.heads)
    goal, valid = goals(batch, count)
    missing = -features.shape[1] % count

    def cut(x: Array) -> Array:  # [B T ...] → [K B T/K ...]
        padded = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(len(x), count, -1, *x.shape[2:]), 1, 0)

    def block(part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        features, goal, valid = part
        each = [of_head(head, features, goal[..., k], valid[..., k]) for k, head in enumerate(model.heads)]
        return jax.tree.map(lambda *heads: jnp.stack(heads), *each)

    lost, right = jax.lax.map(jax.checkpoint(block), (cut(features), cut(goal), cut(valid)))
    total = lost.sum(axis=0) @ decay ** jnp.arange(count)
    return total, {"count": valid[..., 0].sum().astype(jnp.float32), "agreement": right[:, 0].sum()}


def goals(batch: Windows, count: int) -> tuple[Int[Array, "B T heads"], Bool[Array, "B T heads"]]:
    """The token that each of `count` heads is to predict at each position, and whether that counts.

    The LM head predicts the next token; head k the one k + 1 after that, where it is of the same document.
    """
    segment = jnp.asarray(batch.segment)

    def ahead(x: Array, otherwise: int) -> Array:
        shift = lambda by: jnp.pad(x, [(0, 0), (0, by)], constant_values=otherwise)[:, by:]
        return jnp.stack([shift(k + 2) for k in range(count)], axis=-1)

    same = ahead(segment, -1) == segment[..., None]
    return ahead(jnp.asarray(batch.tokens), 0), ahead(jnp.asarray(batch.counted), 0) & same


def of_head(
    head: MedusaHead, features: Float[Array, "B T D"], goal: Int[Array, "B T"], valid: Bool[Array, "B T"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Summed cross-entropy of a head, and how often its argmax is the text's token."""
    logits, _ = predict(head, features)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, goal)
    right = (logits.argmax(-1) == goal) & valid
    return (each * valid).sum(), right.sum().astype(jnp.float32)
