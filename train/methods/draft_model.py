"""A small LLaMA distilled from the target: the draft model of speculative decoding (arXiv:2211.17192)."""

import dataclasses
from functools import partial
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.convert import tokenizer
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama, unembed
from jaxspec.model.quantization import dense
from jaxspec.train.data.text import Windows
from jaxspec.train.methods import lm
from jaxspec.train.methods.distillation import distil
from jaxspec.train.methods.packed import hidden_states
from jaxspec.train.run import heads
from jaxspec.train.run.heads import Job, target_features
from jaxspec.train.run.trainer import Sums
from jaxspec.train.settings.objectives import Distillation

_SHARED = ("embedding", "head.kernel", "norm")


def train(job: Job, goal: Distillation, layers: int, hidden_size: int | None, dtype: str) -> Llama:
    """Trains a LLaMA with the target's vocabulary; see `heads.train`.

    Args:
        goal: KL(target ‖ draft), or the cross-entropy of the text's own tokens.
        layers: one makes the vanilla draft model (VDM) that EDD's paper compares with.
        hidden_size: None for the target's own; embedding, final norm and LM head then start from the target's.
        dtype: of the checkpoint on disk.
    """
    target = job.target.config.model
    if hidden_size is None:
        shape = dataclasses.replace(target, num_layers=layers)
    else:
        small = lm.shape(target.vocab_size, layers, hidden_size, target.head_dim, target.max_length)
        shape = dataclasses.replace(small, rope=target.rope, norm_eps=target.norm_eps, max_length=target.max_length)
    model = Llama(shape, rngs=nnx.Rngs(job.recipe.seed))
    if shape.hidden_size == target.hidden_size:
        say("embedding, final norm and LM head start from the target's")
        theirs, own = module_to_dict(job.target.target), module_to_dict(model)
        # A copy: training donates its arrays, and the target needs its own.
        shared = dense(theirs, [name for name in _SHARED if name in own])
        own |= {name: jnp.array(value, jnp.float32, copy=True) for name, value in shared.items()}
        model = dict_to_module(model, own)
    described = dataclasses.replace(
        job.target.config, model=shape, dtype=dtype, source_dtype=dtype, source_format="jaxspec", quantize=None
    )

    def write(folder: Path, trained: Llama) -> None:
        config_json.write_config(folder, described)
        tokenizer.copy(job.target.path, folder)
        params = module_to_dict(trained).items()
        parameters.write_params(folder / "params", ((name, param.astype(dtype)) for name, param in params))

    return heads.train(job, "draft-model", model, partial(loss, goal=goal), write)


def loss(
    model: Llama, target: Llama, batch: Windows, key: Key[Array, ""] | None, goal: Distillation
) -> tuple[Float[Array, ""], Sums]:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, over the tokens that count."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    drafts = unembed(model, hidden_states(model, tokens, segment))
    return distil(goal, drafts, unembed(target, target_features(target, batch)), batch)
