"""config.json of published EAGLE-3 heads. Their projects agree on the tensors, but not on the meaning of settings.

There are two conventions for the tapped layers and two meanings of `norm_output`, and no file says which one it uses.
See `taps` and `norms`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.head_parts import Taps, listed_layers, one_layer, refuse_window, section
from jaxspec.model.config import LlamaConfig

Layout = Literal["official", "specforge", "speculators"]
LAYOUTS: dict[Layout, str] = {
    "official": "the layout of EAGLE's authors",
    "specforge": "the layout of SpecForge and SGLang",
    "speculators": "the layout of speculators and vLLM",
}
"""Names of the layouts in messages."""

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_NO_FLAGS = ("rms_norm_eps",)


def layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has. SpecForge and SGLang have their own class name, or an `eagle_config`."""
    if "speculators_model_type" in raw or "speculators_config" in raw:
        return "speculators"
    theirs = "LlamaForCausalLMEagle3" in (raw.get("architectures") or ()) or "eagle_config" in raw
    return "specforge" if theirs else "official"


def model(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layer. Raises CheckpointError, naming a setting that is missing or not supported."""
    file, layer = source / "config.json", raw
    if layout_of(raw) == "speculators" and not isinstance(layer := raw.get("transformer_layer_config"), dict):
        raise CheckpointError(f"{file} must describe the head's layer in 'transformer_layer_config'")
    shape = one_layer(layer, source, "an EAGLE-3 head that jaxspec reads")
    width = raw.get("target_hidden_size") or shape.hidden_size
    if width != shape.hidden_size:
        raise CheckpointError(
            f"{file} says target_hidden_size {width} and hidden_size {shape.hidden_size}; jaxspec only supports "
            "EAGLE-3 heads that are as wide as their target"
        )
    refuse_window(layer, file)
    return dataclasses.replace(shape, tie_embeddings=False)  # it has its own LM head


def taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused.

    Speculators and vLLM list these layers at the top level. SpecForge and SGLang list, in `eagle_config`, the layers
    whose outputs are read, so each number is one less. Without a list, EAGLE's own code decides.

    Args:
        override: the layers that the user names; None: read the config.
    """
    if override is not None:
        return Taps(tuple(override), "as --taps says")
    file = source / "config.json"
    nested = section(raw, "eagle_config", file)
    top, inner = listed_layers(raw, LAYER_IDS, file), listed_layers(nested, LAYER_IDS, file)
    if top is not None and inner is not None:
        raise CheckpointError(
            f"{file} lists {LAYER_IDS} twice, at the top and in eagle_config, which mean different things; name "
            "the layers whose inputs the head reads with --taps"
        )
    if top is not None:
        return Taps(top, f"{LAYER_IDS} at the top level of config.json, read as layers whose inputs these are")
    if inner is not None:
        outputs = tuple(layer + 1 for layer in inner)
        return Taps(outputs, f"{LAYER_IDS} in eagle_config, read as layers whose outputs these are, so one more each")
    return Taps(None, "those of EAGLE's own code, since config.json lists none")


def norms(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The settings of `Eagle3Options` about norms.

    In speculators and vLLM, `norm_output` says that the final norm's output is fed back. In SpecForge it says that
    there is a norm before the LM head, and its default is true.
    """
    file = source / "config.json"
    given = _merged(raw, section(raw, "eagle_config", file), file)
    unknown = sorted(k for k, value in given.items() if "norm" in k and k not in (*_NORMS, *_NO_FLAGS) and value)
    if unknown:
        raise CheckpointError(f"{file} sets {unknown[0]!r}, a norm that jaxspec does not know")
    for name in _NORMS:
        if not isinstance(given.get(name), bool | None):
            raise CheckpointError(f"{file} must give true or false as {name!r}, and it has {given[name]!r}")
    if given.get("norm_before_fc") and given.get("fc_norm"):
        raise CheckpointError(f"{file} sets both norm_before_fc and fc_norm, which exclude each other")
    fed_back = layout_of(raw) == "speculators"
    output = given.get("norm_output")
    return {
        "tap_norm": "all" if given.get("norm_before_fc") else "each" if given.get("fc_norm") else "none",
        "norm_before_residual": bool(given.get("norm_before_residual")),
        "final_norm": fed_back or output is not False,
        "returns_normed": fed_back and bool(output),
    }


def _merged(raw: Mapping[str, Any], nested: Mapping[str, Any], file: Path) -> dict[str, Any]:
    for name in _NORMS:
        if name in raw and name in nested and raw[name] != nested[name]:
            raise CheckpointError(f"{file} sets {name!r} twice, at the top and in eagle_config, to different values")
    return {**raw, **nested}
