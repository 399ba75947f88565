"""Heads of EAGLE-1 and EAGLE-2 in their authors' format.

A published head contains a copy of the target's embedding, which jaxspec drops if it is equal, and export restores.
"""

import dataclasses
from pathlib import Path

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_parts import Files, OwnHead, PublishedHead, Unsupported
from jaxspec.convert.names import theirs
from jaxspec.drafters.eagle import Eagle
from jaxspec.host.terminal import say

_QUERY = "layers.0.self_attn.q_proj"


def plan(source: Path) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    config = head_kinds.read(source, "eagle")
    wrapped = "model" in config.raw
    raw = config.raw["model"] if wrapped else config.raw
    tensors = head_parts.open_head(source, [f"{_QUERY}.weight"])
    lm_head, biased = tensors.pop("lm_head.weight", None) if wrapped else None, "fc.bias" in tensors
    model, windows = head_parts.shape_of(config, raw, model_type="llama")
    if windows:
        raise CheckpointError(
            f"{config.file} has layer_types 'sliding_attention', which jaxspec reads in other heads only"
        )
    if model.num_layers != 1:
        raise CheckpointError(f"{config.file} has num_hidden_layers {model.num_layers}; an EAGLE head has one layer")
    head_parts.warn_of_theta(model, config.file)
    # Old configs do not mention the biases of the layer, so the tensors decide.
    qkv_bias = model.qkv_bias or bool(raw.get("qkv_bias")) or f"{_QUERY}.bias" in tensors
    model = dataclasses.replace(model, qkv_bias=qkv_bias)
    for key, held in {"bias": biased, "eagle_fc_bias": biased, "truncated_vocab_size": model.vocab_size}.items():
        if (given := {**raw, **config.raw}.get(key)) not in (None, held):
            raise CheckpointError(f"{config.file} sets {key!r} to {given!r}, and the files have {held!r}")
    return PublishedHead(
        config, Eagle(), "EAGLE head, of EAGLE-1 or EAGLE-2", model.vocab_size, model.hidden_size,
        {"bias": biased, "own_embedding": True}, _published, model=model, lm_head=lm_head,
    ).with_tensors(tensors)  # fmt: skip


def unsupported(head: OwnHead) -> Unsupported:
    """What the format does not support; see `heads.export`."""
    settings = head.config.settings
    inputs = settings.get("inputs")
    return {
        "eagle": (
            (settings.get("draft_vocabulary") is not None, "was cut to a draft vocabulary"),
            (inputs is not None, f"was trained with --inputs {inputs}"),
        )
    }


def files(head: OwnHead, form: str) -> Files:
    """The files of a head in the published format, with the target's embedding; see `heads.export`."""
    # `architectures` is LlamaForCausalLM, as in the heads of EAGLE's authors; vLLM derives its own name from it. Only
    # SGLang requires LlamaForCausalLMEagle instead.
    config = head.config
    if config.settings["bias"]:
        say("the head's fc has a bias, which vLLM does not support; heads trained without --bias have none")
    values = {
        **head_parts.as_eagles(head, qkv_bias=True),
        "num_hidden_layers": 1,
        "attention_bias": config.model.output_bias,
        "qkv_bias": config.model.qkv_bias,
        "bias": config.settings["bias"],
    }
    arrays = head_parts.with_targets(head, "embedding")
    return Files(values, arrays, _published, f"EAGLE head for {head.target}")


def _published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layer.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    if ours.startswith("fc."):
        return ours.replace("kernel", "weight")
    return theirs(ours.replace("layer.", "layers.0.")).removeprefix("model.")
