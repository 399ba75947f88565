"""Shapes of published models, and of the heads that a method would bring to a target that has none yet."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.heads import find_head
from jaxspec.controllers.acceptance_predictor import AcceptancePredictor, draft_width
from jaxspec.decoding.drafter import Models
from jaxspec.drafters.eagle import EagleHead
from jaxspec.drafters.early_exit import EarlyExitHead, default_first
from jaxspec.drafters.edd import EddHead, default_tap
from jaxspec.drafters.layer_skip import skip
from jaxspec.drafters.medusa import MedusaHeads
from jaxspec.methods.method import Method, name_of, needs_head, needs_weights
from jaxspec.model.config import LlamaConfig, Rope
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import check, quantized

_LLAMA3_ROPE = Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)

MODELS = {
    "llama-2-7b": LlamaConfig(32000, 4096, 11008, 32, 32, 32, 128, max_length=4096),
    "llama-2-13b": LlamaConfig(32000, 5120, 13824, 40, 40, 40, 128, max_length=4096),
    "llama-2-70b": LlamaConfig(32000, 8192, 28672, 80, 64, 8, 128, max_length=4096),
    "llama-3.1-8b": LlamaConfig(128256, 4096, 14336, 32, 32, 8, 128, max_length=131072, rope=_LLAMA3_ROPE),
    "llama-3.1-70b": LlamaConfig(128256, 8192, 28672, 80, 64, 8, 128, max_length=131072, rope=_LLAMA3_ROPE),
}
"""As the config.json of meta-llama/Llama-2-7b-hf, -13b-hf, -70b-hf, Llama-3.1-8B and -70B on the Hugging Face hub."""

SKIPPED = (0.6, 0.3)
"""Shares of attention and of MLP blocks that Draft & Verify's search left out of LLaMA-2-13B (arXiv:2309.08168,
appendix C: 24 and 12 of 40), for targets for which nobody searched. Which blocks these are does not change the cost."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What to plan for.

    Attributes:
        path: of a checkpoint; None for a shape without one.
        quantize: what the target's kernels are quantised to once loaded; None: they are not.
    """

    config: LlamaConfig
    path: Path | None = None
    quantize: str | None = None


def find_model(name: str, quantize: str | None = None) -> Target:
    """A published model by its name, or a checkpoint by its path, which may be quantised already.

    Raises:
        ValueError: it is neither, its weights cannot be quantised as wanted, or Qwix, which quantises, is not there.
    """
    if name in MODELS:
        check(quantize)
        return Target(MODELS[name], None, quantize)
    try:
        path = locate(name)
        config = config_json.read_config(path)
    except ValueError as error:
        raise ValueError(f"--model {name!r}: {error}; the models known by name are {', '.join(MODELS)}") from error
    return Target(config.model, path, parameters.quantization(config, quantize, path))


def models_of(target: Target, method: Method, dtype: jnp.dtype) -> Models:
    """Target, head and predictor of a method, abstract: shapes without arrays.

    A head that the checkpoint has is taken as it is; of any other, its paper's shape.

    Raises:
        ValueError: a draft model that is not there, whose shape nothing says.
    """
    config = target.config
    draft = _head(target, method, dtype) if needs_head(method.drafter) else None
    models = Models(target=_llama(config, target.quantize, dtype), draft=draft)
    if not needs_weights(method.controller):
        return models
    width = draft_width(method.drafter, models)
    control = nnx.eval_shape(lambda: AcceptancePredictor(config.hidden_size, width, rngs=nnx.Rngs(0), dtype=dtype))
    return dataclasses.replace(models, control=control)


def _llama(config: LlamaConfig, quantize: str | None, dtype: jnp.dtype) -> Llama:
    whole = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0), dtype=dtype))
    return whole if quantize is None else nnx.eval_shape(lambda model: quantized(model, quantize), whole)


def _head(of: Target, method: Method, dtype: jnp.dtype) -> Any:
    target, name, settings = of.config, name_of(method.drafter), None
    # EAGLE's layer for a mixture of experts has none; an exit and EDD's layer begin as layers of the target.
    config = dataclasses.replace(target.without_experts if name == "eagle" else target, num_layers=1)
    found = _find(of.path, method)
    if name == "draft-model":
        if found is None:
            raise ValueError(
                f"method {method}: what a draft model costs depends on its shape; name one after an @, as a path, or "
                "plan for a checkpoint that has it under heads/"
            )
        shape = config_json.read_config(found)
        return _llama(shape.model, shape.quantize, dtype)
    if found is not None:
        read = heads.read_head(found, name)
        config, settings = read.model, read.settings
    make, default = _HEADS[name]
    settings = default(target) if settings is None else settings
    return (
        nnx.eval_shape(lambda: make(config, dtype, settings)) if name != "layer-skip" else make(target, dtype, settings)
    )


def _find(path: Path | None, method: Method) -> Path | None:
    """Where the head is that a method names; None where there is none yet.

    Without a checkpoint there is no folder in which the drafter's own name means a head.
    """
    assert method.head is not None
    if path is None and method.head == name_of(method.drafter):
        return None
    try:
        return find_head(path or Path(), method.head)
    except ValueError:
        return None


def _searched(config: LlamaConfig) -> dict[str, Any]:
    spread = lambda share: [i for i in range(config.num_layers) if int((i + 1) * share) > int(i * share)]
    return {"attention": spread(SKIPPED[0]), "mlp": spread(SKIPPED[1])}


Make = Callable[[LlamaConfig, jnp.dtype, dict[str, Any]], Any]
_HEADS: dict[str, tuple[Make, Callable[[LlamaConfig], dict[str, Any]]]] = {
    "eagle": (
        lambda config, dtype, settings: EagleHead(config, rngs=nnx.Rngs(0), dtype=dtype, **settings),
        lambda target: {"bias": False},
    ),
    "early-exit": (
        lambda config, dtype, settings: EarlyExitHead(config, rngs=nnx.Rngs(0), dtype=dtype, **settings),
        lambda target: {"first": default_first(target.num_layers)},
    ),
    "edd": (
        lambda config, dtype, settings: EddHead(config, rngs=nnx.Rngs(0), dtype=dtype, **settings),
        lambda target: {"tap": default_tap(target.num_layers)},
    ),
    "medusa": (
        lambda config, dtype, settings: MedusaHeads(
            config.hidden_size, config.vocab_size, rngs=nnx.Rngs(0), dtype=dtype, **settings
        ),
        lambda target: {"heads": 5},
    ),
    "layer-skip": (lambda config, dtype, settings: skip(config.num_layers, **settings), _searched),
}
"""How each drafter's head is made, from its shape, dtype and settings, and the settings that its paper has."""
