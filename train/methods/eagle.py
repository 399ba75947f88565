"""EAGLE's training (arXiv:2401.15077, §4): regression of the target's next feature, and cross-entropy."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from jaxspec.drafters.eagle import Eagle, EagleHead
from jaxspec.model.attention import over_documents
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import EagleObjective
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, positions, target_features


def train(settings: options.Eagle) -> EagleHead:
    """Trains a head with one layer of the target's shape; see `heads.train`."""
    drafter = Eagle()
    with heads.open_job(drafter.name, settings) as job:
        shape = drafter.head_for(job.target.config.model, bias=settings.bias, inputs=settings.inputs)
        head = heads.built(job.target.mesh, drafter, shape, settings.recipe.seed)
        return heads.train(job, drafter, shape, head, partial(loss, objective=settings.objective))


def loss(
    head: EagleHead, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: EagleObjective
) -> Summed:
    """SmoothL1 of the predicted features + w · cross-entropy of their token distributions with the target's.

    w is `objective.cross_entropy`. Input i is the pair (feature i, token i + 1). Its target is feature i + 1, and it
    drafts token i + 2. It counts if that token counts and belongs to the same document.
    """
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    features, _ = target_features(target, batch)
    inputs, goal = features[:, :-2], features[:, 1:-1]
    if key is not None and objective.noise:
        span = objective.noise * (512 / tokens.shape[1] if objective.noise_scale == "length" else 1.0)
        inputs += jax.random.uniform(key, inputs.shape, inputs.dtype, -span, span)
    paired, document = tokens[:, 1:-1] if head.shifted else tokens[:, :-2], segment[:, :-2]
    angles = rotary(head.config, positions(document))
    predicted, _ = head(target, paired, inputs, angles, over_documents(document))
    regression = optax.huber_loss(predicted.astype(jnp.float32), goal.astype(jnp.float32)).mean(-1)
    target_logits, drafts = target.logits(goal), target.logits(predicted)
    cross_entropy = optax.softmax_cross_entropy(drafts, jax.nn.softmax(target_logits))
    counted = jnp.asarray(batch.counted)[:, 2:] & (document == segment[:, 2:])
    total = lambda each: (each * counted).sum()
    sums = {
        "count": counted.sum().astype(jnp.float32),
        "regression": total(regression),
        "cross_entropy": total(cross_entropy),
        "agreement": total(drafts.argmax(-1) == target_logits.argmax(-1)).astype(jnp.float32),
    }
    return sums["regression"] + objective.cross_entropy * sums["cross_entropy"], sums
