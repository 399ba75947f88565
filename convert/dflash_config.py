"""config.json of published DFlash heads, in the layouts of DFlash's authors and of speculators and vLLM.

The two list layers differently: the authors name layers by their outputs, speculators by their inputs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import hf_config
from jaxspec.convert.head_keys import INPUTS, OUTPUTS
from jaxspec.convert.head_parts import Taps, listed_layers, refuse_window, section
from jaxspec.model.config import LlamaConfig

Layout = Literal["official", "speculators"]
LAYOUTS: dict[Layout, str] = {
    "official": "the layout of DFlash's authors",
    "speculators": "the layout of speculators and vLLM",
}
"""Names of the layouts in messages."""

SECTION = "dflash_config"
_ROPE = ("rope_parameters", "rope_scaling")
_BLOCK = {"block_size": "block", "mask_token_id": "mask_token"}


def layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has."""
    return "speculators" if "speculators_model_type" in raw or "transformer_layer_config" in raw else "official"


def model(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layers. They are Qwen3 layers, whatever the target is.

    Raises:
        CheckpointError: a setting is missing or not supported; the message names it.
    """
    file, layers = source / "config.json", raw
    if layout_of(raw) == "speculators" and not isinstance(layers := raw.get("transformer_layer_config"), dict):
        raise CheckpointError(f"{file} must describe the head's layers in 'transformer_layer_config'")
    of_head = {"model_type": "qwen3", "architectures": None, "tie_word_embeddings": False, "is_causal": None}
    shape = hf_config.to_llama({**layers, **of_head})
    if (width := raw.get("target_hidden_size", shape.hidden_size)) != shape.hidden_size:
        raise CheckpointError(
            f"{file} says target_hidden_size {width} and hidden_size {shape.hidden_size}; jaxspec only supports DFlash "
            "heads that are as wide as their target"
        )
    refuse_window(layers, file)
    if not any(where.get("rope_theta") for where in (layers, *(section(layers, key, file) for key in _ROPE))):
        raise CheckpointError(
            f"{file} gives no rope_theta, and projects disagree on its default (transformers 10,000, vLLM 1,000,000); "
            "add the value of the head's training"
        )
    return shape


def taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused. Raises CheckpointError for an invalid list.

    Args:
        override: the layers that the user names; None: read the config.
    """
    if override is not None:
        return Taps(tuple(override), "as --taps says")
    file = source / "config.json"
    given, speculators = {**raw, **section(raw, SECTION, file)}, layout_of(raw) == "speculators"
    if (other := OUTPUTS if speculators else INPUTS) in given:
        raise CheckpointError(f"{file} has {other}, unlike {LAYOUTS[layout_of(raw)]}; name the layers with --taps")
    if speculators:
        if (inputs := listed_layers(raw, INPUTS, file)) is None:
            raise CheckpointError(f"{file} has no {INPUTS}: name the layers whose inputs the head reads with --taps")
        return Taps(inputs, f"{INPUTS}, read as layers whose inputs these are")
    if (outputs := listed_layers(given, OUTPUTS, file)) is None:
        return Taps(None, "those of DFlash's own code, since config.json lists none")
    return Taps(
        tuple(layer + 1 for layer in outputs), f"{OUTPUTS}, read as layers whose outputs these are, so one more each"
    )


def block(raw: Mapping[str, Any], source: Path) -> dict[str, int]:
    """The settings of `DflashOptions` about blocks: `block` and `mask_token`. Raises CheckpointError without them."""
    file = source / "config.json"
    given = {**raw, **section(raw, SECTION, file)}
    if OUTPUTS in raw and "sample_from_anchor" not in given:
        raise CheckpointError(
            f"{file} has {OUTPUTS} outside {SECTION}, like DeepSpec, whose rows draft the next position; add "
            "sample_from_anchor: false if those of this head draft their own"
        )
    for key in _BLOCK:
        if key not in given:
            raise CheckpointError(f"{file} gives no {key}, which a DFlash head needs; add it")
        if type(given[key]) is not int or given[key] < 0:
            raise CheckpointError(f"{file} must give a whole number as {key!r}, and it has {given[key]!r}")
    return {ours: given[key] for key, ours in _BLOCK.items()}
