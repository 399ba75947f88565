"""Distils a small LLaMA from the target: the draft model of speculative decoding (arXiv:2211.17192)."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxspec.checkpoint import checksums, config_json, parameters
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.convert import tokenizer
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import Distillation
from jaxspec.train.methods import lm
from jaxspec.train.run import heads
from jaxspec.train.run.losses import Summed, distil
from jaxspec.train.run.packed import hidden_states, target_features


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
        if shape.model.hidden_size == target.hidden_size:
            say("embedding, final norm and LM head start from the target's")
            shared = {"embedding", "head.kernel", "norm"} & module_to_dict(model).keys()
            model = heads.started(model, job.target.target, {name: name for name in shared})
        write = partial(write_checkpoint, job.target, settings.save_dtype, job.sources.chat_args)
        return heads.train(job, drafter, shape, model, partial(loss, objective=settings.objective), write=write)


def write_checkpoint(
    target: Checkpoint, dtype: str, chat_args: dict[str, Any] | None, folder: Path, trained: Llama
) -> None:
    """Writes a draft model as a checkpoint in `dtype`, with the target's tokenizer."""
    described = dataclasses.replace(
        target.config, model=trained.config, quantize=None, chat_args=chat_args, dtype=dtype, source_dtype=dtype,
        source_format="jaxspec",
    )  # fmt: skip
    tokenizer.copy(target.path, folder)
    params = module_to_dict(trained).items()
    parameters.write_params(folder / "params", ((name, param.astype(dtype)) for name, param in params))
    checksums.write(folder)
    config_json.write_config(folder, described)


def loss(model: Llama, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: Distillation) -> Summed:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, over the tokens that count."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    drafts = model.logits(hidden_states(model, tokens, segment))
    features, _ = target_features(target, batch)
    return distil(objective, drafts, target.logits(features), batch)
