"""EESD's training (arXiv:2406.03853, §3.1-3.2): an exit after the target's first layers learns the next token.

Only the first layers and the exit are loaded and run, so a step costs much less than one that runs the whole target.
"""

import dataclasses
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key

from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.drafters.early_exit import EarlyExit, EarlyExitHead, default_first
from jaxspec.model.attention import over_documents
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, run_layers
from jaxspec.model.quantization import is_quantized, whole_name
from jaxspec.model.rope import rotary
from jaxspec.model.sharding import move, place, split_mesh
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, counted_next, cross_entropy, positions


def train(settings: options.EarlyExit) -> EarlyExitHead:
    """Trains an exit; see `heads.train`. The whole target is not loaded, so decoding is not measured."""
    drafter, exits = EarlyExit(), settings.exit_layers
    with heads.open_job(drafter.name, settings, partial(load, first=settings.first)) as job:
        model, first = job.target.config.model, job.target.target.config.num_layers
        heads.check_range("--exit-layers", 0, model.num_layers, exits)
        shape = drafter.head_for(model, first=first, exit_layers=exits)
        head = nnx.eval_shape(lambda: drafter.build_head(shape, nnx.Rngs(0)))
        return heads.train(job, drafter, shape, load_initial(job.target.path, head, model), loss, decodes=False)


def bottom_config(model: LlamaConfig, first: int) -> LlamaConfig:
    """The shape of the target's embedding and first layers, without LM head."""
    return dataclasses.replace(model, num_layers=first, tie_embeddings=True)


def load_bottom(path: Path, config: CheckpointConfig, first: int, dtype: jnp.dtype) -> Llama:
    """Reads only the embedding and the first layers of a checkpoint."""
    cut = parameters.abstract(bottom_config(config.model, first), config.quantize)
    arrays = parameters.read_arrays(path / "params", module_to_dict(cut).keys())
    convert = lambda name, array: jnp.asarray(array, None if is_quantized(name) else dtype)
    return dict_to_module(cut, {name: convert(name, array) for name, array in arrays.items()})


def load_initial(path: Path, head: EarlyExitHead, model: LlamaConfig) -> EarlyExitHead:
    """The head with the weights of `sources_of` from a checkpoint, of which nothing else is read."""
    sources = sources_of(head, model)
    wanted = {*sources.values()} | ({"embedding"} if model.tie_embeddings else set())
    parts = [name for name in parameters.read_shapes(path / "params") if whole_name(name) in wanted]
    return dict_to_module(head, heads.copies(parameters.read_arrays(path / "params", parts), sources))


def sources_of(head: EarlyExitHead, model: LlamaConfig) -> dict[str, str]:
    """The target's parameter from which each parameter of the head starts: of the last layers, norm and LM head."""
    offset = model.num_layers - len(head.layers)
    shifted = lambda match: f"layers.{int(match[1]) + offset}."
    return {name: re.sub(r"^layers\.(\d+)\.", shifted, name) for name in module_to_dict(head)}


def load(path: Path, dtype: str, mesh: Mesh | None = None, *, first: int | None) -> Checkpoint:
    """A checkpoint with only the target's embedding and its `first` layers (None: the default number).

    Raises ValueError if the target has too few layers; CheckpointError if there is none, or it is damaged.
    """
    folder = locate(path)
    config = config_json.read_config(folder)
    count = default_first(config.model.num_layers) if first is None else first
    if config.model.num_layers < 2:
        raise ValueError(f"{path} has only one layer, so it has no early exit")
    heads.check_range("--first", 1, config.model.num_layers - 1, count)
    bottom = load_bottom(folder, config, count, jnp.dtype(dtype))
    if mesh is not None:
        mesh = split_mesh(mesh, config.model)
        bottom = move(bottom, place(bottom, mesh))
    return Checkpoint(folder, config, bottom, load_tokenizer(folder), config_json.head_names(folder), mesh)


def loss(head: EarlyExitHead, bottom: Llama, batch: Windows, key: Key[Array, ""] | None) -> Summed:
    """Cross-entropy of the text's next token, over the tokens that count (§3.2)."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    angles, attend = rotary(bottom.config, positions(segment)), over_documents(segment)
    x, _, _ = run_layers(bottom.layers, bottom.embed(tokens), angles, [attend] * len(bottom.layers))
    logits, _, _ = head(jax.lax.stop_gradient(x), angles, [attend] * len(head.layers))
    total, sums = cross_entropy(logits, batch)
    right = (logits[:, :-1].argmax(-1) == tokens[:, 1:]) & counted_next(batch)
    return total, {**sums, "agreement": right.sum().astype(jnp.float32)}
