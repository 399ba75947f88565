"""Finds out which kind of draft head a folder holds, so that errors can name an unsupported kind."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.readers import Source, open_directory

Kind = Literal["eagle", "eagle3", "dflash", "medusa", "speculators", "model", "unknown"]

_EAGLE3 = re.compile(r"(.*\.)?(midlayer\..*|d2t|t2d)")
_DFLASH = re.compile(r"(model\.)?hidden_norm\.weight")
_MEDUSA = re.compile(r"(.*\.)?medusa_head\..*|\d+\.\d+\.linear\.(weight|bias)")
_WHAT: dict[Kind, str] = {
    "eagle": "a head of EAGLE-1 or EAGLE-2",
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head",
    "medusa": "Medusa heads",
    "speculators": "a head in the speculators format that is neither EAGLE-3's nor DFlash's; only these are supported",
    "model": "a whole model and no head; use `jaxspec-convert llama`",
    "unknown": "no head that jaxspec knows: neither fc.weight nor a decoder layer nor 0.0.linear.weight is among its "
    "tensors",
}


def kind_of(source: Path, config: Mapping[str, Any]) -> Kind:
    """The kind of head in a folder, by its config if that is clear, otherwise by the names of its tensors."""
    if "speculators_model_type" in config:
        named = config["speculators_model_type"]
        return "eagle3" if named == "eagle3" else "dflash" if named == "dflash" else "speculators"
    if "dflash_config" in config or "DFlashDraftModel" in (config.get("architectures") or ()):
        return "dflash"
    if "medusa_num_heads" in config or any(source.glob("medusa_lm_head.*")):
        return "medusa"
    return _by_tensors(open_directory(source))


def check(source: Path, config: Mapping[str, Any], wanted: Kind) -> None:
    """Raises CheckpointError, naming the actual kind, if a folder does not hold the wanted kind of head."""
    if (kind := kind_of(source, config)) != wanted:
        raise CheckpointError(f"{source} holds {_WHAT[kind]}")


def _by_tensors(tensors: Source) -> Kind:
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
