"""EAGLE-3's training (arXiv:2503.01840, §3.2): drafting steps are unrolled, so the head trains on its own outputs.

Row i of training is one round of drafting after token i + 1. Step 0 reads the true feature of token i and token i + 1.
Each later step reads the output of the step before and the text's next token.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.drafters import draft_vocabulary
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Head, Eagle3Options
from jaxspec.host.arguments import check_unused
from jaxspec.model.attention import over_steps
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import LM_HEAD
from jaxspec.model.rope import rotary
from jaxspec.train import options
from jaxspec.train.data.encoding import token_counts
from jaxspec.train.data.text import Windows, take
from jaxspec.train.hyperparameters import Eagle3Objective
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, ahead, positions, target_features

_ROWS = 4096  # windows that are read at once to count tokens


def train(settings: options.Eagle3) -> Eagle3Head:
    """Trains a head; see `heads.train`."""
    drafter = Eagle3()
    with heads.open_job(drafter.name, settings) as job:
        config = job.target.config.model
        heads.check_range("--taps", 0, config.num_layers - 1, *(settings.taps or ()))
        packed, _ = heads.prepared(job)
        if settings.init is None:
            ids = chosen(packed, job.target, settings.draft_vocab)
        else:
            check_unused(settings, "--init, whose head has a draft vocabulary", "draft_vocab")
            given = heads.initial_shape(settings.init, job.target, drafter)
            mask = Eagle3Options.from_settings(given.settings).draft_vocabulary
            ids = draft_vocabulary.ids_of(mask, config.vocab_size).tolist()
        chosen_shape = {name: getattr(settings, name) for name in ("taps", "tap_norm", "width", "window")}
        shape = drafter.head_for(config, ids=ids, **chosen_shape)
        head = initial(job.target.target, heads.built(job.target.mesh, drafter, shape, settings.recipe.seed))
        return heads.train(job, drafter, shape, head, partial(loss, objective=settings.objective))


def chosen(packed: Windows, target: Checkpoint, size: int) -> list[int]:
    """The draft vocabulary: ascending ids of EOS and the most frequent tokens that count in training, `size` in all."""
    parts = (take(packed, slice(start, start + _ROWS)) for start in range(0, len(packed.tokens), _ROWS))
    counts = token_counts(parts, target.config.model.vocab_size)
    return draft_vocabulary.most_frequent(counts, size, always=target.config.eos).tolist()


def initial(target: Llama, random: Eagle3Head) -> Eagle3Head:
    """A head whose final norm and LM head start as the target's. The LM head has the draft vocabulary's columns.

    A head of another width starts from random weights. Its embedding has the target's standard deviation.
    """
    if random.options.target_width is not None:
        params, table = module_to_dict(random), target.embedding[...].astype(jnp.float32)
        noise = jax.random.normal(jax.random.key(0), params["embedding"].shape, jnp.float32)
        return dict_to_module(random, {**params, "embedding": table.std() * noise})
    copied = heads.copies(module_to_dict(target), {LM_HEAD: LM_HEAD, "norm": "norm"})
    copied[LM_HEAD] = copied[LM_HEAD][:, random.ids]
    return dict_to_module(random, {**module_to_dict(random), **copied})


def loss(
    head: Eagle3Head, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: Eagle3Objective
) -> Summed:
    """Σ_k decay^k · cross-entropy of step k's distribution with the target's, over the draft vocabulary.

    Row i of step k drafts token i + 2 + k. It counts if that token counts, is in the row's document, and the target's
    first choice is in the draft vocabulary. `count` is the number of rows of step 0, which has the most. `alpha_k` is
    the share of step k's rows whose first choice is the target's (n-α of EAGLE, Table 2).
    """
    features, taps = target_features(target, batch, head.options.taps)
    segment, tokens = jnp.asarray(batch.segment), jnp.asarray(batch.tokens)
    target_logits = jax.lax.stop_gradient(target.logits(features))
    drafted, best = target_logits[..., head.ids], target_logits.argmax(-1)
    in_vocabulary = jnp.zeros(target_logits.shape[-1], bool).at[head.ids].set(True)[best]
    counted = jnp.asarray(batch.counted)

    @jax.checkpoint  # otherwise the logits of all steps are kept for the gradient
    def of_step(out: Array, target_logits: Array, chosen: Array, valid: Array) -> tuple[Array, Array]:
        drafts = head.logits(target, out)
        lost = optax.softmax_cross_entropy(drafts, jax.nn.softmax(target_logits))
        right = jnp.asarray(head.ids)[drafts.argmax(-1)] == chosen
        return jnp.where(valid, lost, 0.0).sum(), (right & valid).sum().astype(jnp.float32)

    total, rows, right = jnp.float32(0), [], []
    for k, out in enumerate(unroll(head, target, tokens, head.fuse(taps), segment, objective.draft_steps)):
        valid = ahead(counted, 2 + k) & (ahead(segment, 2 + k, -1) == segment) & ahead(in_vocabulary, 1 + k)
        lost, agrees = of_step(out, ahead(drafted, 1 + k), ahead(best, 1 + k), valid)
        total += objective.decay**k * lost
        rows.append(valid.sum().astype(jnp.float32))
        right.append(agrees)
    alphas = {f"alpha_{k}": count for k, count in enumerate(right)}
    return total, {"count": rows[0], **alphas, **{f"alpha_{k}/rows": count for k, count in enumerate(rows)}}


def unroll(
    head: Eagle3Head,
    target: Llama,
    tokens: Int[Array, "B T"],
    features: Float[Array, "B T D"],
    segment: Int[Array, "B T"],
    count: int,
) -> list[Float[Array, "B T D"]]:
    """The outputs of `count` drafting steps: in step k, row i reads token i + 1 + k and its output of step k - 1."""
    at, steps, outputs = positions(segment), (), []
    for k in range(count):
        angles = rotary(head.config, at + k)
        features, steps = head(target, ahead(tokens, 1 + k), features, angles, over_steps(segment, steps, head.window))
        outputs.append(features)
    return outputs
