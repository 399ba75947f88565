"""Conversion of EAGLE-3 heads between their published layouts and jaxspec's, bit for bit in both directions.

EAGLE's authors, SpecForge and SGLang name the layer `midlayer`; speculators and vLLM name it `layers.0`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import draft_maps, head_kinds, hf_config
from jaxspec.convert.head_kinds import LISTED, NORMS, OUTPUTS, classes_of
from jaxspec.convert.head_parts import (
    Taps,
    as_llama,
    check_depth,
    count_taps,
    eagles_rope,
    head_arrays,
    head_config,
    listed_layers,
    one_layer,
    section,
    speculators_config,
    target_of,
    without_targets,
    write_fused,
)
from jaxspec.convert.names import theirs, unprefixed
from jaxspec.convert.readers import Source, Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import main_dtype, match, write_published
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Options, official_taps
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig

Layout = Literal["official", "specforge", "speculators", "deepspec"]
LAYOUTS: dict[Layout, str] = {
    "official": "the layout of EAGLE's authors",
    "specforge": "the layout of SpecForge and SGLang",
    "speculators": "the layout of speculators and vLLM",
    "deepspec": "the layout of DeepSpec",
}
"""Names of the layouts in messages."""


def _layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has. SpecForge and SGLang have their own class name, or an `eagle_config`."""
    if any(key in raw for key in ("speculators_model_type", "speculators_config", "transformer_layer_config")):
        return "speculators"
    classes = classes_of(raw)
    if "Qwen3Eagle3Model" in classes:
        return "deepspec"
    return "specforge" if "LlamaForCausalLMEagle3" in classes or "eagle_config" in raw else "official"


def _shape_of(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layer. Raises CheckpointError, naming a setting that is missing or not supported."""
    file, layer = source / "config.json", raw
    if _layout_of(raw) == "speculators" and not isinstance(layer := raw.get("transformer_layer_config"), dict):
        raise CheckpointError(f"{file} must describe the head's layer in 'transformer_layer_config'")
    shape = one_layer(layer, source, "an EAGLE-3 head that jaxspec reads")
    if (width := raw.get("target_hidden_size", shape.hidden_size)) != shape.hidden_size:
        raise CheckpointError(
            f"{file} says target_hidden_size {width} and hidden_size {shape.hidden_size}; jaxspec only supports "
            "EAGLE-3 heads that are as wide as their target"
        )
    return dataclasses.replace(shape, tie_embeddings=False)  # it has its own LM head


def _read_taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
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
    if (outputs := listed_layers(raw, OUTPUTS, file)) is not None or _layout_of(raw) == "deepspec":
        if outputs is None or _layout_of(raw) != "deepspec" or top is not None or inner is not None:
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


def _norms(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
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
    fed_back = _layout_of(raw) == "speculators"
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


def _names(layer: str, tap_norm: str) -> Callable[[str], str]:
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
    raw = head_kinds.read(source, "eagle3")
    layout, model = _layout_of(raw), _shape_of(raw, source)
    read_taps, norms = _read_taps(raw, source, taps), _norms(raw, source)
    found = unprefixed(open_directory(source), source, [f"{layer}.self_attn.q_proj.weight" for layer in _LAYERS])
    model = dataclasses.replace(model, qk_norm=any(name.endswith(".self_attn.q_norm.weight") for name in found))
    maps = {name: found.pop(name) for name in draft_maps.NAMES if name in found}
    check_dtypes(found)
    if not norms["final_norm"] and found.pop("norm.weight", None) is not None:
        say(f"{source} has norm_output false, so its norm.weight is unused and left out")
    mask = draft_maps.read(maps, _drafted(raw, found, source), model.vocab_size, str(source))
    settings = {"draft_vocabulary": mask, "own_embedding": "embed_tokens.weight" in found, **norms}
    layer = next((layer for layer in _LAYERS if any(name.startswith(f"{layer}.") for name in found)), _LAYERS[0])
    published = _names(layer, settings["tap_norm"])
    count = count_taps(found, read_taps, len(OFFICIAL), model.hidden_size, source)
    abstract = _abstract(model, {**settings, "taps": (0,) * count})
    tensors = match(abstract, found, published, str(source))
    return PublishedHead(layout, model, read_taps, settings, raw.get("num_target_layers"), tensors, published)


def convert(
    source: Path, out: Path, target: Path, dtype: str | None = None, taps: Sequence[int] | None = None
) -> heads.HeadConfig:
    """Converts a published head into the head `out`; arguments and errors as of `dflash.convert`."""
    planned, goal = plan(source, taps), config_json.read_config(target).model
    heads.check_same_shape(source, planned.model, goal)
    check_depth(planned.target_layers, goal, source)
    layers = planned.taps.layers or official_taps(goal.num_layers)
    source_dtype = main_dtype(planned.tensors.values())
    tensors, own = without_targets(planned.tensors, "embedding", "embedding", source_dtype, target, source)
    settings = {"taps": list(layers), **planned.settings, "own_embedding": own}
    config = heads.HeadConfig(Eagle3.name, planned.model, dtype or source_dtype, source_dtype, settings)
    said = LAYOUTS[planned.layout], planned.taps.reason
    return write_fused(Eagle3(), "EAGLE-3 head", config, tensors, source, out, goal, dtype, said)


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


Format = Literal["eagle3", "speculators"]
_LEVELS = 3
"""Default number of tokens that vLLM drafts per round."""


def export(source: Path, out: Path, form: Format, target: Path | None = None, verifier: str | None = None) -> None:
    """Writes a head in a published format, as safetensors. An embedding is written only if the head has its own.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        form: `eagle3` for EAGLE's own code and SGLang, `speculators` for speculators and vLLM.
        target: the head's target; None: the checkpoint whose `heads` folder contains the head.
        verifier: the target's name in a `speculators` config, a hub id or a folder; None: the target's folder.

    Raises:
        CheckpointError: `source` is not an EAGLE-3 head, its target is not known or does not fit, or the format cannot
            describe the head.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    config = head_config(source, Eagle3.name, "eagle3 or speculators")
    target = target_of(source) if target is None else target
    goal = config_json.read_config(target)
    heads.check_same_shape(source, config.model, goal.model)
    options = Eagle3Options.from_settings(config.settings)
    layer = hf_config.from_checkpoint(as_llama(config, goal))
    if form == "speculators":
        _check_final_norm(source, options)
        common = speculators_config("eagle3", layer, goal, target, verifier, _LEVELS)
        values = {**common, **_speculators(options)}
    else:
        if config.model.qk_norm:
            raise _refusal(source, "norms queries and keys")
        values = _official(source, options, eagles_rope(layer), goal)
    shape = HeadShape(config.model, config.settings)
    arrays = head_arrays(source, config, nnx.eval_shape(lambda: Eagle3().build_head(shape, nnx.Rngs(0))))
    drafted = arrays["head.kernel"].shape[-1]
    maps = draft_maps.write(options.draft_vocabulary, config.model.vocab_size)
    named = _names("layers.0" if form == "speculators" else "midlayer", options.tap_norm)
    write_published(out, {**arrays, **maps}, {**values, "draft_vocab_size": drafted}, "model.safetensors", named)
    say(f"wrote {out}: EAGLE-3 head for {target}, which drafts {drafted} tokens, {config.source_dtype}")


def _official(source: Path, options: Eagle3Options, layer: dict[str, Any], goal: CheckpointConfig) -> dict[str, Any]:
    """The config.json for EAGLE's own code and SGLang. The flags are for other projects that read this layout."""
    official = official_taps(goal.model.num_layers)
    for differs, what in (
        (options.tap_norm != "none", "norms the layers of the target before fc"),
        (options.norm_before_residual, "begins the residual stream with the normed feature"),
        (options.returns_normed, "feeds back the output of its final norm"),
        (len(options.taps) != len(official), f"reads {len(options.taps)} layers of the target and not three"),
    ):
        if differs:
            raise _refusal(source, what)
    _check_final_norm(source, options)
    values = {**layer, "architectures": ["LlamaForCausalLMEagle3"], **_flags(options)}
    if options.taps != official:
        say(
            f"warning: EAGLE's own code always reads layers {', '.join(map(str, official))}, but this head reads "
            "others; SGLang reads those in the config"
        )
        values["eagle_config"] = {LISTED: [tap - 1 for tap in options.taps]}
    return values


def _refusal(source: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the head at {source} {what}, which EAGLE's own code does not compute; use --format speculators"
    )


def _speculators(options: Eagle3Options) -> dict[str, Any]:
    """The settings of an EAGLE-3 head for speculators and vLLM. Their defaults differ, so every flag is written."""
    return {
        "architectures": ["Eagle3Speculator"],
        LISTED: list(options.taps),
        **_flags(options),
        "norm_output": options.returns_normed,
    }


def _flags(options: Eagle3Options) -> dict[str, bool]:
    """The flags of the norms, without `norm_output`, because projects that read the official layout disagree on it."""
    return {
        "norm_before_residual": options.norm_before_residual,
        "norm_before_fc": options.tap_norm == "all",
        "fc_norm": options.tap_norm == "each",
    }


def _check_final_norm(source: Path, options: Eagle3Options) -> None:
    if not options.final_norm:
        raise CheckpointError(
            f"the head at {source} has no norm before its LM head, which only SpecForge supports; none of the formats "
            "can describe it"
        )
