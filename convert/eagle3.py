"""Conversion of EAGLE-3 heads between their published layouts and jaxspec's, bit for bit in both directions.

EAGLE's authors, SpecForge and SGLang name the layer `midlayer`; speculators and vLLM name it `layers.0`.
`eagle3_config` interprets their configs, and `draft_maps` their draft vocabularies.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import draft_maps, eagle3_config, fused_heads, head_keys
from jaxspec.convert.eagle3_config import LAYOUTS, Layout
from jaxspec.convert.head_parts import Taps, without_targets
from jaxspec.convert.names import theirs, unprefixed
from jaxspec.convert.readers import Source, Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import main_dtype, match
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Options, official_taps
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig

_LAYERS = ("midlayer", "layers.0")
OFFICIAL = ("2", "n/2", "n - 3")
"""Layers whose inputs EAGLE's own code reads, for a target with n layers."""


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head: its config, and the source tensor of each of jaxspec's parameters.

    Attributes:
        layout: the project whose layout it has.
        model: shape of its layer.
        taps: the layers whose inputs it reads.
        settings: fields of `Eagle3Options`, without the taps.
        target_layers: number of layers of its target; None: not in the config.
        tensors: source tensors by jaxspec's names.
        published: maps a jaxspec name to the name in the files.
    """

    layout: Layout
    model: LlamaConfig
    taps: Taps
    settings: dict[str, Any]
    target_layers: int | None
    tensors: dict[str, Tensor]
    published: Callable[[str], str]


def names(layer: str, tap_norm: str) -> Callable[[str], str]:
    """A function from jaxspec's names to published ones: `layer.mlp.up.kernel` → `midlayer.mlp.up_proj.weight`.

    Args:
        layer: the published name of the layer.
        tap_norm: as in `Eagle3Options`.
    """

    def published(ours: str) -> str:
        if ours in draft_maps.NAMES:
            return ours
        if ours == "fc.kernel":
            return "fc.weight"
        if ours == "feature_norm":
            return f"{layer}.hidden_norm.weight"
        if ours.startswith("tap_norms."):
            return "input_norm.weight" if tap_norm == "all" else ours.replace("tap_norms", "fc_norm") + ".weight"
        whole = theirs(ours.replace("layer.", "layers.0.", 1), "huggingface").removeprefix("model.")
        return whole.replace("layers.0", layer, 1)

    return published


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """A published head, read and checked; see `fused_heads`.

    Args:
        taps: the layers whose inputs it reads; None: those in the config, by the convention of its layout.
    """
    raw = head_keys.read(source, "eagle3")
    layout, model = eagle3_config.layout_of(raw), eagle3_config.model(raw, source)
    read_taps, norms = eagle3_config.taps(raw, source, taps), eagle3_config.norms(raw, source)
    found = unprefixed(open_directory(source), source, [f"{layer}.self_attn.q_proj.weight" for layer in _LAYERS])
    model = dataclasses.replace(model, qk_norm=any(name.endswith(".self_attn.q_norm.weight") for name in found))
    maps = {name: found.pop(name) for name in draft_maps.NAMES if name in found}
    check_dtypes(found)
    if not norms["final_norm"] and found.pop("norm.weight", None) is not None:
        say(f"{source} has norm_output false, so its norm.weight is unused and left out")
    mask = draft_maps.read(maps, _drafted(raw, found, source), model.vocab_size, str(source))
    settings = {"draft_vocabulary": mask, "own_embedding": "embed_tokens.weight" in found, **norms}
    layer = next((layer for layer in _LAYERS if any(name.startswith(f"{layer}.") for name in found)), _LAYERS[0])
    published = names(layer, settings["tap_norm"])
    count = fused_heads.count_read(found, read_taps, len(OFFICIAL), model.hidden_size, source)
    abstract = _abstract(model, {**settings, "taps": (0,) * count})
    tensors = match(abstract, found, published, str(source))
    return PublishedHead(layout, model, read_taps, settings, raw.get("num_target_layers"), tensors, published)


def convert(
    source: Path, out: Path, target: Path, dtype: str | None = None, taps: Sequence[int] | None = None
) -> heads.HeadConfig:
    """Converts a published head into the head `out`; arguments and errors as of `dflash.convert`."""
    planned, goal = plan(source, taps), config_json.read_config(target).model
    heads.check_same_shape(source, planned.model, goal)
    fused_heads.check_depth(planned.target_layers, goal, source)
    layers = planned.taps.layers or official_taps(goal.num_layers)
    source_dtype = main_dtype(planned.tensors.values())
    tensors, own = without_targets(planned.tensors, "embedding", "embedding", source_dtype, target, source)
    settings = {"taps": list(layers), **planned.settings, "own_embedding": own}
    config = heads.HeadConfig(Eagle3.name, planned.model, dtype or source_dtype, source_dtype, settings)
    said = LAYOUTS[planned.layout], planned.taps.reason
    return fused_heads.write(Eagle3(), "EAGLE-3 head", config, tensors, source, out, goal, dtype, said)


def _drafted(raw: Mapping[str, Any], found: Source, source: Path) -> int:
    """Rows of the LM head. Raises CheckpointError if there is none, or the config has another number."""
    if (lm_head := found.get("lm_head.weight")) is None:
        raise CheckpointError(f"tensor lm_head.weight is missing in {source}, and an EAGLE-3 head has an LM head")
    rows, said = lm_head.shape[0], raw.get("draft_vocab_size")
    if said not in (None, rows):
        raise CheckpointError(
            f"{source / 'config.json'} says draft_vocab_size {said}, and lm_head.weight has {rows} rows; the files are "
            "incomplete, or their config is another head's"
        )
    return rows


def _abstract(model: LlamaConfig, settings: Mapping[str, Any]) -> nnx.Module:
    options = Eagle3Options.from_settings(settings)
    shape = HeadShape(model, dataclasses.asdict(options))
    return nnx.eval_shape(lambda: Eagle3().build_head(shape, nnx.Rngs(0)))
