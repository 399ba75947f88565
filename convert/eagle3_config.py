"""config.json of published EAGLE-3 heads. Their projects agree on the tensors, but not on the meaning of settings.

There are two conventions for the tapped layers and two meanings of `norm_output`, and no file says which one it uses.
See `taps` and `norms`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert.head_keys import LISTED, NORMS, OUTPUTS
from jaxspec.convert.head_parts import Taps, listed_layers, one_layer, section
from jaxspec.convert.kinds import classes_of
from jaxspec.model.config import LlamaConfig

Layout = Literal["official", "specforge", "speculators", "deepspec"]
LAYOUTS: dict[Layout, str] = {
    "official": "the layout of EAGLE's authors",
    "specforge": "the layout of SpecForge and SGLang",
    "speculators": "the layout of speculators and vLLM",
    "deepspec": "the layout of DeepSpec",
}
"""Names of the layouts in messages."""


def layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has. SpecForge and SGLang have their own class name, or an `eagle_config`."""
    if any(key in raw for key in ("speculators_model_type", "speculators_config", "transformer_layer_config")):
        return "speculators"
    classes = classes_of(raw)
    if "Qwen3Eagle3Model" in classes:
        return "deepspec"
    return "specforge" if "LlamaForCausalLMEagle3" in classes or "eagle_config" in raw else "official"


def model(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layer. Raises CheckpointError, naming a setting that is missing or not supported."""
    file, layer = source / "config.json", raw
    if layout_of(raw) == "speculators" and not isinstance(layer := raw.get("transformer_layer_config"), dict):
        raise CheckpointError(f"{file} must describe the head's layer in 'transformer_layer_config'")
    shape = one_layer(layer, source, "an EAGLE-3 head that jaxspec reads")
    if (width := raw.get("target_hidden_size", shape.hidden_size)) != shape.hidden_size:
        raise CheckpointError(
            f"{file} says target_hidden_size {width} and hidden_size {shape.hidden_size}; jaxspec only supports "
            "EAGLE-3 heads that are as wide as their target"
        )
    return dataclasses.replace(shape, tie_embeddings=False)  # it has its own LM head


def taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused.

    Speculators and vLLM list these layers at the top level. SpecForge and SGLang list, in `eagle_config`, the layers
    whose outputs are read, so each number is one less; so does DeepSpec, under another name. Without a list, or with an
    empty one as in Model Optimizer's defaults, EAGLE's own code decides.

    Args:
        override: the layers that the user names; None: read the config.
    """
    if override is not None:
        return Taps(tuple(override), "as --taps says")
    file = source / "config.json"
    nested = {key: value for key, value in section(raw, "eagle_config", file).items() if value != []}
    top, inner = listed_layers(raw, LISTED, file), listed_layers(nested, LISTED, file)
    if (outputs := listed_layers(raw, OUTPUTS, file)) is not None or layout_of(raw) == "deepspec":
        if outputs is None or layout_of(raw) != "deepspec" or top is not None or inner is not None:
            raise CheckpointError(
                f"{file} must list the layers that the head reads once, as {OUTPUTS} if it is DeepSpec's and otherwise "
                f"as {LISTED}; or name the layers whose inputs it reads with --taps"
            )
        return _after(outputs, OUTPUTS)
    if top is not None and inner is not None:
        raise CheckpointError(
            f"{file} lists {LISTED} twice, at the top and in eagle_config, which mean different things; name "
            "the layers whose inputs the head reads with --taps"
        )
    if top is not None:
        return Taps(top, f"{LISTED} at the top level of config.json, read as layers whose inputs these are")
    if inner is not None:
        return _after(inner, f"{LISTED} in eagle_config")
    return Taps(None, "those of EAGLE's own code, since config.json lists none")


def norms(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The settings of `Eagle3Options` about norms.

    In speculators and vLLM, `norm_output` says that the final norm's output is fed back. In SpecForge it says that
    there is a norm before the LM head, and its default is true.
    """
    file = source / "config.json"
    given = {**raw, **section(raw, "eagle_config", file)}
    for name in NORMS:
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


def _after(outputs: tuple[int, ...], where: str) -> Taps:
    """The layers that read these layers' outputs."""
    return Taps(
        tuple(layer + 1 for layer in outputs), f"{where}, read as layers whose outputs these are, so one more each"
    )
