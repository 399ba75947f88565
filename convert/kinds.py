"""Finds out which kind of draft head a folder holds, by one table; kinds that jaxspec does not read are named.

Kinds with the same tensors can compute different things, so the table also looks at the config.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.readers import Source, open_directory, read_config

SECTIONS = ("dflash_config", "dspark_config", "eagle_config")
"""Objects in config.json that hold a head's own settings. Some projects write these settings at the top level."""


class Row(NamedTuple):
    """Evidence of a kind: one match in any column is enough. Each pattern has to match the whole text.

    Attributes:
        kind: one that jaxspec reads, or what to call another.
        types: of speculators' model type, or SpecForge's `projector_type`.
        classes: of a name in `architectures`.
        keys: of a setting, at the top level or in one of `SECTIONS`, that is not false, 0 or empty.
        tensors: of a tensor's name.
    """

    kind: str
    types: str = ""
    classes: str = ""
    keys: str = ""
    tensors: str = ""


_TABLE = (  # the first match counts
    Row(
        "a DFlash2 head, with convolutions and a candidate selector",
        "dflash2",
        "DFlash2.*",
        "conv_kernel_size|conv_group_size|selector_rank|selector_top_k",
        r"(.*\.)?(candidate_selector|attention_conv|mlp_conv)\..*",
    ),
    Row("a Domino head", "domino", "Domino.*", "gru_hidden_dim|pure_draft_prefix_len", r"(.*\.)?prefix_gru\..*"),
    Row("P-EAGLE's head", "peagle", "PEagle.*", "parallel_drafting", r"(.*\.)?mask_hidden"),
    Row("an MTP head", "mtp", ".*MTP.*", "", r"(.*\.)?(mtp\..*|eh_proj\.weight)"),
    Row(
        "a head with layers of its target's family (Gemma, DeepSeek, Kimi and the like), not LLaMA's or Qwen3's",
        classes="(?!Qwen3DSpark).*DSparkModel|Gemma.*Eagle3.*|Eagle3Deepseek.*",
    ),
    Row(
        "a DSpark head, with a Markov term or a confidence head",
        "dspark",
        "DSpark.*",
        "markov_rank|enable_confidence_head|use_confidence_head|dspark_.*",
        r"(.*\.)?(markov_(head|w1|w2)|confidence_(head|proj))\..*",
    ),
    Row(
        "a DFlash head with anchor rows (DeepSpec, sample_from_anchor), which draft the next position, not their own",
        classes="Qwen3DSparkModel",
        keys="sample_from_anchor|shift_label",
    ),
    Row("eagle3", "eagle3", "LlamaForCausalLMEagle3|Eagle3LlamaForCausalLM|Eagle3Speculator|Qwen3Eagle3Model"),
    Row("dflash", "dflash", "DFlashDraftModel|Qwen3DFlashDraftModel|DFlashSpeculator", "dflash_config"),
    Row("eagle", "", "LlamaForCausalLMEagle|EagleLlamaForCausalLM|EAGLEModel"),
)
_WHAT = {
    "eagle": "a head of EAGLE-1 or EAGLE-2",
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head",
    "medusa": "Medusa heads",
    "speculators": "a head in the speculators format that is neither EAGLE-3's nor DFlash's; only these are supported",
    "model": "a whole model and no head; use `jaxspec-convert llama`",
    "unknown": "no head that jaxspec knows: neither fc.weight nor a decoder layer nor 0.0.linear.weight is among its "
    "tensors",
}
_EAGLE3 = re.compile(r"(.*\.)?(midlayer\..*|layers\.0\.hidden_norm\.weight|d2t|t2d)")
_DFLASH = re.compile(r"(model\.)?hidden_norm\.weight")
_MEDUSA = re.compile(r"(.*\.)?medusa_head\..*|\d+\.\d+\.linear\.(weight|bias)")


def kind_of(source: Path, config: Mapping[str, Any]) -> str:
    """The kind of head in a folder, by its config if that is clear, otherwise by the names of its tensors."""
    if "medusa_num_heads" in config or any(source.glob("medusa_lm_head.*")):
        return "medusa"
    own = [config, *(section for name in SECTIONS if isinstance(section := config.get(name), dict))]
    types = [config.get("speculators_model_type"), *(each.get("projector_type") for each in own)]
    keys = [key for each in own for key, value in each.items() if value]
    tensors = open_directory(source)
    for kind, *patterns in _TABLE:
        if any(map(_matches, patterns, (types, classes_of(config), keys, tensors))):
            return kind
    if config.get("speculators_model_type") is not None:
        return "speculators"
    return "eagle" if config.get("model_type") == "eagle" else _by_tensors(tensors)


def read(source: Path, wanted: str) -> dict[str, Any]:
    """The config.json of a head of this kind. Raises CheckpointError, naming the actual kind, for another one."""
    config = read_config(source)
    if (kind := kind_of(source, config)) != wanted:
        what = _WHAT.get(kind, f"{kind}; jaxspec does not read such heads yet")
        raise CheckpointError(f"{source} holds {what}")
    if kind != "medusa" and (held := _by_tensors(open_directory(source))) in ("eagle3", "dflash") and held != kind:
        raise CheckpointError(f"{source} has the config of {_WHAT[kind]}, and tensors of {_WHAT[held]}")
    return config


def classes_of(config: Mapping[str, Any]) -> list[Any]:
    """The class names in `architectures`."""
    found = config.get("architectures")
    return found if isinstance(found, list) else [found]


def _matches(pattern: str, found: Iterable[Any]) -> bool:
    return any(isinstance(text, str) and text and re.fullmatch(pattern, text) for text in found)


def _by_tensors(tensors: Source) -> str:
    def last(end):
        return next((t for name, t in tensors.items() if f".{name}".endswith(f".{end}")), None)

    fc = last("fc.weight")
    if fc is not None and any(map(_DFLASH.fullmatch, tensors)):
        return "dflash"
    if any(map(_EAGLE3.fullmatch, tensors)) or (fc is not None and fc.shape[1:] == (3 * fc.shape[0],)):
        return "eagle3"
    if any(map(_MEDUSA.fullmatch, tensors)):
        return "medusa"
    if fc is None and last("layers.0.input_layernorm.weight") is not None:
        return "model"
    return "unknown" if fc is None and last("layers.0.self_attn.q_proj.weight") is None else "eagle"
