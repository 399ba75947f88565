"""Conversion of EAGLE-1 and EAGLE-2 heads between their published format and jaxspec's, bit for bit in both directions.

A published head contains a copy of the target's embedding. If it equals the target's, jaxspec drops it, and export
writes it again. Neither format contains the LM head, which is the target's.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import head_kinds, hf_config
from jaxspec.convert.head_parts import (
    as_llama,
    eagles_rope,
    head_arrays,
    head_config,
    is_targets,
    lm_head_of,
    one_layer,
    target_of,
    without_targets,
)
from jaxspec.convert.names import theirs, unprefixed
from jaxspec.convert.readers import Source, Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import main_dtype, match, write_head, write_published
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle import Eagle
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig

_QUERY = "layers.0.self_attn.q_proj"


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head: its config, and the source tensor of each of jaxspec's parameters.

    Attributes:
        lm_head: the target's LM head, which an older variant of the format contains; otherwise None.
    """

    config: heads.HeadConfig
    tensors: dict[str, Tensor]
    lm_head: Tensor | None


def published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layer.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    if ours.startswith("fc."):
        return ours.replace("kernel", "weight")
    return theirs(ours.replace("layer.", "layers.0."), "huggingface").removeprefix("model.")


def plan(source: Path) -> PublishedHead:
    """Reads config and headers of a published head and checks them against each other.

    Raises:
        CheckpointError: the files are invalid, or the folder holds something else.
    """
    outer = head_kinds.read(source, "eagle")
    wrapped = "model" in outer
    raw = outer["model"] if wrapped else outer
    found = unprefixed(open_directory(source), source, [f"{_QUERY}.weight"])
    check_dtypes(found)
    lm_head = found.pop("lm_head.weight", None) if wrapped else None
    model, settings = _model(raw, found, source), {"bias": "fc.bias" in found, "own_embedding": True}
    biased, size = settings["bias"], model.vocab_size
    for key, held in {"bias": biased, "eagle_fc_bias": biased, "truncated_vocab_size": size}.items():
        if (given := {**raw, **outer}.get(key)) not in (None, held):
            raise CheckpointError(f"{source / 'config.json'} sets {key!r} to {given!r}, and the files have {held!r}")
    tensors = match(_abstract(model, settings), found, published, str(source))
    dtype = main_dtype(tensors.values())
    return PublishedHead(heads.HeadConfig(Eagle.name, model, dtype, dtype, settings), tensors, lm_head)


def convert(source: Path, out: Path, target: Path, dtype: str | None = None) -> heads.HeadConfig:
    """Converts a published head into the head `out`.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        target: the checkpoint that the head was trained for.
        dtype: dtype of every parameter; None keeps each tensor's own.

    Raises:
        CheckpointError: the source is invalid or for another target; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    planned, goal = plan(source), config_json.read_config(target)
    config, tensors = planned.config, planned.tensors
    heads.check_same_shape(source, config.model, goal.model)
    lm_head = lm_head_of(goal)
    if planned.lm_head is not None and lm_head is not None and not is_targets(planned.lm_head, target, lm_head):
        raise CheckpointError(
            f"tensor {planned.lm_head.name} in {source} is not the LM head of {target}, which an EAGLE "
            "head needs; name the target that the head was trained for"
        )
    tensors, own = without_targets(tensors, "embedding", "embedding", config.source_dtype, target, source)
    config = dataclasses.replace(
        config, dtype=dtype or config.dtype, settings={**config.settings, "own_embedding": own}
    )
    write_head(source, out, config, tensors, dtype, "EAGLE head")
    return config


def export(source: Path, out: Path, target: Path | None = None) -> None:
    """Writes a head in the published format, with the target's embedding.

    It writes safetensors, which EAGLE's own code, vLLM and SGLang can all read.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        target: the head's target; None: the checkpoint whose `heads` folder contains the head.

    Raises:
        CheckpointError: `source` is not an EAGLE head, or its target is not known or does not fit.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    config = head_config(source, Eagle.name)
    target = target_of(source) if target is None else target
    goal = config_json.read_config(target)
    heads.check_same_shape(source, config.model, goal.model)
    if (inputs := config.settings.get("inputs")) is not None:
        raise CheckpointError(
            f"the head at {source} was trained with --inputs {inputs}, for which the format has no place; export a "
            "head that reads features and shifted tokens"
        )
    if config.settings["bias"]:
        say("the head's fc has a bias, which vLLM does not support; heads trained without --bias have none")
    arrays = head_arrays(source, config, _abstract(config.model, config.settings))
    if "embedding" not in arrays:
        (table,) = parameters.read_arrays(target / "params", ["embedding"]).values()
        arrays["embedding"] = table.astype(config.source_dtype)
    write_published(out, arrays, _published_config(config, goal), "model.safetensors", published)
    say(f"wrote {out}: EAGLE head for {target}, {config.source_dtype}")


def _model(raw: Mapping[str, Any], found: Source, source: Path) -> LlamaConfig:
    """Shape of the head's layer. Old configs do not mention its biases, so the tensors decide."""
    model = one_layer(raw, source, "an EAGLE head")
    biased = model.qkv_bias or bool(raw.get("qkv_bias")) or f"{_QUERY}.bias" in found
    return dataclasses.replace(model, qkv_bias=biased)


def _abstract(model: LlamaConfig, settings: Mapping[str, Any]) -> nnx.Module:
    return nnx.eval_shape(lambda: Eagle().build_head(HeadShape(model, settings), nnx.Rngs(0)))


def _published_config(config: heads.HeadConfig, goal: CheckpointConfig) -> dict[str, Any]:
    """The config.json of a published head: that of a LLaMA with one layer, with its biases.

    `architectures` is LlamaForCausalLM, as in the heads of EAGLE's authors; vLLM derives its own name from it. Only
    SGLang requires LlamaForCausalLMEagle instead.
    """
    return {
        **eagles_rope(hf_config.from_checkpoint(as_llama(config, goal))),
        "attention_bias": config.model.output_bias,
        "qkv_bias": config.model.qkv_bias,
        "bias": config.settings["bias"],
    }
