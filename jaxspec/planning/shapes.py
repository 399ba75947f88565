"""Shapes of published models, and of heads for a target that has none yet."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.builtin import is_hub_id, locate, shape_on_hub
from jaxspec.checkpoint.heads import find_head
from jaxspec.controllers.cali_ts import draft_width
from jaxspec.decoding.drafter import Models
from jaxspec.drafters import DraftModel
from jaxspec.engine.head_weights import read_shape
from jaxspec.methods.method import Method
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
"""From config.json of meta-llama/Llama-2-7b-hf, -13b-hf, -70b-hf, Llama-3.1-8B and -70B on the Hugging Face hub."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The target to plan for: `path` is its checkpoint, None for a published shape; `quantize` as in `PlanSettings`."""

    config: LlamaConfig
    path: Path | None = None
    quantize: str | None = None


def find_model(name: str, quantize: str | None = None) -> Target:
    """A published model by its name, a model of the hub, of which no weights are read, or a checkpoint.

    Raises ValueError if there is no such model, it cannot be quantised this way, or Qwix is not installed.
    """
    if name in MODELS or is_hub_id(name):
        check(quantize)
        return Target(MODELS[name] if name in MODELS else shape_on_hub(name), quantize=quantize)
    try:
        path = locate(name)
        config = config_json.read_config(path)
    except ValueError as error:
        raise ValueError(f"--model {name!r}: {error}; the models known by name are {', '.join(MODELS)}") from error
    return Target(config.model, path, parameters.quantization(config, quantize, path))


def models_of(target: Target, method: Method, dtype: jnp.dtype) -> Models:
    """Target, head and predictor of a method as shapes, without arrays.

    A head in the checkpoint has its own shape; any other head has the shape of its paper. Raises ValueError for a draft
    model that does not exist, whose shape is not known.
    """
    llama = nnx.eval_shape(lambda: Llama(target.config, rngs=nnx.Rngs(0), dtype=dtype))
    if (how := target.quantize) is not None:
        llama = nnx.eval_shape(lambda model: quantized(model, how), llama)
    models = Models(target=llama, draft=_head(target, method, dtype) if method.drafter.has_head else None)
    if not method.controller.needs_weights:
        return models
    widths = target.config.hidden_size, draft_width(method.drafter, models)
    return dataclasses.replace(models, control=nnx.eval_shape(lambda: method.controller.build_weights(*widths, dtype)))


def _head(target: Target, method: Method, dtype: jnp.dtype) -> Any:
    assert method.head is not None
    drafter, found = method.drafter, None
    if target.path is not None or method.head != drafter.name:  # a drafter's name is that of a head in a checkpoint
        with contextlib.suppress(ValueError):
            found = find_head(target.path or Path(), method.head)
    if found is None and isinstance(drafter, DraftModel):
        raise ValueError(
            f"method {method}: the cost of a draft model depends on its shape; give its path after an @, or "
            "plan for a checkpoint that has one in heads/"
        )
    shape = drafter.head_for(target.config) if found is None else read_shape(found, drafter, target.config)
    return nnx.eval_shape(lambda: drafter.build_head(shape, nnx.Rngs(0), dtype))
