"""Medusa-1's training (arXiv:2401.10774, §2.2.1): each head learns to predict one token further ahead."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Int, Key

from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import LM_HEAD
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, ahead, target_features


def train(settings: options.Medusa) -> MedusaHeads:
    """Trains heads; see `heads.train`."""
    drafter = Medusa()
    with heads.open_job(drafter.name, settings) as job:
        shape = drafter.head_for(job.target.config.model, heads=settings.heads)
        begun = initial(job.target.target, settings.heads)
        return heads.train(job, drafter, shape, begun, partial(loss, decay=settings.decay))


def initial(target: Llama, count: int) -> MedusaHeads:
    """Heads that start as the target's LM head. Their residual blocks start as the identity: W and b are 0."""
    drafter = Medusa()
    blank = nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(target.config, heads=count), nnx.Rngs(0)))
    leaves = module_to_dict(blank)
    lm_heads = {name: LM_HEAD for name in leaves if name.endswith(".head.kernel")}
    zeros = {name: jnp.zeros(leaf.shape, jnp.float32) for name, leaf in leaves.items() if name not in lm_heads}
    return dict_to_module(blank, zeros | heads.copies(module_to_dict(target), lm_heads))


def loss(model: MedusaHeads, target: Llama, batch: Windows, key: Key[Array, ""] | None, decay: float) -> Summed:
    """Σ_k decay^k · cross-entropy of head k's prediction, over the tokens that count (Eq. 1, with λ_k = decay^k).

    The paper counts heads from 1 and this function from 0, which is a constant factor. `count` is the number of head
    0's tokens; other heads have slightly fewer, because documents end.

    Logits of all K heads and positions would take K · [B, T, V] float32. So positions are split into K blocks, which
    run one after another (`lax.map`) and recompute their logits for the gradient (`jax.checkpoint`): no more logits are
    in memory than one head has. In a loop over heads, XLA would keep the logits of all.
    """
    (features, _), count = target_features(target, batch), len(model.heads)
    goal, valid = goals(batch, count)
    missing = -features.shape[1] % count

    def cut(x: Array) -> Array:  # [B T ...] → [K B T/K ...]
        padded = jnp.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(padded.reshape(len(x), count, -1, *x.shape[2:]), 1, 0)

    def block(part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        """The summed cross-entropy of each head, and the number of positions where its argmax is the text's token."""
        features, goal, valid = part
        lost, right = [], []
        for k, head in enumerate(model.heads):
            logits, _ = head(features)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, goal[..., k])
            lost.append((each * valid[..., k]).sum())
            right.append(((logits.argmax(-1) == goal[..., k]) & valid[..., k]).sum().astype(jnp.float32))
        return jnp.stack(lost), jnp.stack(right)

    lost, right = jax.lax.map(jax.checkpoint(block), (cut(features), cut(goal), cut(valid)))
    total = lost.sum(axis=0) @ decay ** jnp.arange(count)
    return total, {"count": valid[..., 0].sum().astype(jnp.float32), "agreement": right[:, 0].sum()}


def goals(batch: Windows, count: int) -> tuple[Int[Array, "B T heads"], Bool[Array, "B T heads"]]:
    """The token that each of `count` heads must predict at each position, and whether it counts.

    The LM head predicts the next token, and head k the one k + 1 tokens later. It counts only in the same document.
    """
    segment = jnp.asarray(batch.segment)
    of_heads = lambda x, otherwise=0: jnp.stack([ahead(x, k + 2, otherwise) for k in range(count)], axis=-1)
    same = of_heads(segment, -1) == segment[..., None]
    return of_heads(jnp.asarray(batch.tokens)), of_heads(jnp.asarray(batch.counted)) & same
