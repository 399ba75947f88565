"""Distils a small LLaMA from the target: the draft model of speculative decoding (arXiv:2211.17192)."""

import dataclasses
from functools import partial
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import LM_HEAD
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation
from jaxspec.train.methods import lm
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, distil, hidden_states, target_features


def train(settings: options.DraftModel) -> Llama:
    """Trains a LLaMA with the target's vocabulary; see `heads.train`.

    If it is as wide as the target, embedding, final norm and LM head start from the target's.
    """
    drafter = DraftModel()
    with heads.open_job(drafter.name, settings) as job:
        target = job.target.config.model
        shape = drafter.head_for(target, layers=settings.layers)
        if settings.hidden_size is not None:
            sizes = target.vocab_size, settings.layers, settings.hidden_size, target.head_dim, target.max_length
            small = dataclasses.replace(lm.shape(*sizes), rope=target.rope, norm_eps=target.norm_eps)
            shape = dataclasses.replace(shape, model=small)
        model = heads.built(job.target.mesh, drafter, shape, settings.recipe.seed)
        if shape.model.hidden_size == target.hidden_size and settings.init is None:
            say("embedding, final norm and LM head start from the target's")
            shared = module_to_dict(model).keys() & {"embedding", "norm", LM_HEAD}  # no LM head if it is tied
            model = heads.started(model, job.target.target, {name: name for name in shared})
        config = dataclasses.replace(
            job.target.config, quantize=None, chat_args=job.sources.chat_args,
            dtype=settings.save_dtype, source_dtype=settings.save_dtype, source_format="jaxspec",
        )  # fmt: skip

        def write(folder: Path, trained: Llama) -> None:
            lm.write_checkpoint(dataclasses.replace(config, model=trained.config), job.target.path, folder, trained)

        return heads.train(job, drafter, shape, model, partial(loss, objective=settings.objective), write=write)


def loss(model: Llama, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: Distillation) -> Summed:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, over the tokens that count."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    drafts = model.logits(hidden_states(model, tokens, segment))
    features, _ = target_features(target, batch)
    return distil(objective, drafts, target.logits(features), batch)
