"""Heads of EAGLE-1 and EAGLE-2 in their authors' format.

A published head contains a copy of the target's embedding. If it equals the target's, jaxspec drops it, and export
writes it again.
"""

import dataclasses
from pathlib import Path

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_parts import Files, OwnHead, PublishedHead
from jaxspec.convert.names import theirs
from jaxspec.drafters.eagle import Eagle
from jaxspec.host.terminal import say

_QUERY = "layers.0.self_attn.q_proj"


def plan(source: Path) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    outer = head_kinds.read(source, "eagle")
    wrapped = "model" in outer
    raw = outer["model"] if wrapped else outer
    found = head_parts.open_head(source, [f"{_QUERY}.weight"])
    lm_head, biased = found.pop("lm_head.weight", None) if wrapped else None, "fc.bias" in found
    model, file = head_parts.shape_of(raw, raw, source, model_type="llama"), source / "config.json"
    if model.num_layers != 1:
        raise CheckpointError(f"{file} has num_hidden_layers {model.num_layers}, and an EAGLE head has one layer")
    # Old configs do not mention the biases of the layer, so the tensors decide.
    model = dataclasses.replace(
        model, qkv_bias=model.qkv_bias or bool(raw.get("qkv_bias")) or f"{_QUERY}.bias" in found
    )
    for key, held in {"bias": biased, "eagle_fc_bias": biased, "truncated_vocab_size": model.vocab_size}.items():
        if (given := {**raw, **outer}.get(key)) not in (None, held):
            raise CheckpointError(f"{file} sets {key!r} to {given!r}, and the files have {held!r}")
    return PublishedHead(
        Eagle(), "EAGLE head, of EAGLE-1 or EAGLE-2", model.vocab_size, model.hidden_size,
        {"bias": biased, "own_embedding": True}, _published, model=model, lm_head=lm_head,
    ).with_tensors(found, source)  # fmt: skip


def files(head: OwnHead, form: str) -> Files:
    """The files of a head in the published format, with the target's embedding; see `heads.export`."""
    # `architectures` is LlamaForCausalLM, as in the heads of EAGLE's authors; vLLM derives its own name from it. Only
    # SGLang requires LlamaForCausalLMEagle instead.
    config, (target, _) = head.config, head.with_target()
    if (inputs := config.settings.get("inputs")) is not None:
        raise CheckpointError(
            f"the head at {head.path} was trained with --inputs {inputs}, for which the format has no place; export a "
            "head that reads features and shifted tokens"
        )
    if config.settings["bias"]:
        say("the head's fc has a bias, which vLLM does not support; heads trained without --bias have none")
    head_parts.warn_of_eagles_layers(config.model, qkv_bias=True)
    arrays = head.arrays
    if "embedding" not in arrays:
        (table,) = parameters.read_arrays(target / "params", ["embedding"]).values()
        arrays = {**arrays, "embedding": table.astype(config.source_dtype)}
    values = {
        **head_parts.eagles_rope(head_parts.as_llama(head)),
        "num_hidden_layers": 1,
        "attention_bias": config.model.output_bias,
        "qkv_bias": config.model.qkv_bias,
        "bias": config.settings["bias"],
    }
    return Files(values, arrays, _published, f"EAGLE head for {target}")


def _published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layer.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    if ours.startswith("fc."):
        return ours.replace("kernel", "weight")
    return theirs(ours.replace("layer.", "layers.0.")).removeprefix("model.")
