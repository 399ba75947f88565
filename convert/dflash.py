"""Conversion of DFlash heads between their published layouts and jaxspec's, bit for bit in both directions.

The files of DFlash's authors contain neither embedding nor LM head, which are the target's. The files of speculators
and vLLM contain both, and sometimes a draft vocabulary. jaxspec drops tensors that equal the target's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flax import nnx

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import draft_maps, head_kinds, hf_config
from jaxspec.convert.head_kinds import INPUTS, OUTPUTS
from jaxspec.convert.head_parts import (
    Taps,
    check_depth,
    count_taps,
    head_arrays,
    head_config,
    listed_layers,
    lm_head_of,
    refuse_window,
    section,
    speculators_config,
    target_of,
    without_targets,
    write_fused,
)
from jaxspec.convert.names import theirs, unprefixed
from jaxspec.convert.readers import Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import main_dtype, match, write_published
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.dflash import Dflash, DflashOptions, official_taps
from jaxspec.host.terminal import say
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


def _layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has."""
    return "speculators" if "speculators_model_type" in raw or "transformer_layer_config" in raw else "official"


def _shape_of(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layers. They are Qwen3 layers, whatever the target is.

    Raises:
        CheckpointError: a setting is missing or not supported; the message names it.
    """
    file, layers = source / "config.json", raw
    if _layout_of(raw) == "speculators" and not isinstance(layers := raw.get("transformer_layer_config"), dict):
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


def _read_taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused. Raises CheckpointError for an invalid list.

    Args:
        override: the layers that the user names; None: read the config.
    """
    if override is not None:
        return Taps(tuple(override), "as --taps says")
    file = source / "config.json"
    given, speculators = {**raw, **section(raw, SECTION, file)}, _layout_of(raw) == "speculators"
    if (other := OUTPUTS if speculators else INPUTS) in given:
        raise CheckpointError(f"{file} has {other}, unlike {LAYOUTS[_layout_of(raw)]}; name the layers with --taps")
    if speculators:
        if (inputs := listed_layers(raw, INPUTS, file)) is None:
            raise CheckpointError(f"{file} has no {INPUTS}: name the layers whose inputs the head reads with --taps")
        return Taps(inputs, f"{INPUTS}, read as layers whose inputs these are")
    if (outputs := listed_layers(given, OUTPUTS, file)) is None:
        return Taps(None, "those of DFlash's own code, since config.json lists none")
    return Taps(
        tuple(layer + 1 for layer in outputs), f"{OUTPUTS}, read as layers whose outputs these are, so one more each"
    )


def _blocks(raw: Mapping[str, Any], source: Path) -> dict[str, int]:
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


_OURS = {"fc.kernel": "fc.weight", "context_norm": "hidden_norm.weight", **{name: name for name in draft_maps.NAMES}}


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head: its config, and the source tensor of each of jaxspec's parameters.

    Attributes:
        layout: the project whose layout it has.
        model: shape of its layers.
        taps: the layers whose inputs it reads.
        settings: fields of `DflashOptions`, without the taps.
        target_layers: number of layers of its target; None: not in the config.
        tensors: source tensors by jaxspec's names.
    """

    layout: Layout
    model: LlamaConfig
    taps: Taps
    settings: dict[str, Any]
    target_layers: int | None
    tensors: dict[str, Tensor]

    def layers_read(self, target_layers: int) -> tuple[int, ...]:
        """The taps, for a target with this number of layers."""
        return self.taps.layers or official_taps(target_layers, self.model.num_layers)


def published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layers.0.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    return _OURS.get(ours) or theirs(ours, "huggingface").removeprefix("model.")


def _abstract(model: LlamaConfig, settings: dict[str, Any]) -> nnx.Module:
    """A head of this shape, without arrays."""
    return nnx.eval_shape(lambda: Dflash().build_head(HeadShape(model, settings), nnx.Rngs(0)))


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """A published head, read and checked; see `fused_heads`.

    Args:
        taps: the layers whose inputs it reads; None: those in the config, by the convention of its layout.
    """
    raw = head_kinds.read(source, "dflash")
    model, read_taps = _shape_of(raw, source), _read_taps(raw, source, taps)
    settings: dict[str, Any] = _blocks(raw, source)
    found = unprefixed(open_directory(source), source, ["layers.0.self_attn.q_proj.weight"])
    maps = {name: found.pop(name) for name in draft_maps.NAMES if name in found}
    check_dtypes(found)
    drafted, said = found.get("lm_head.weight"), raw.get("draft_vocab_size")
    rows = model.vocab_size if drafted is None else drafted.shape[0]
    if said not in (None, rows):
        held = "tensor lm_head.weight is missing" if drafted is None else f"lm_head.weight has {rows} rows"
        raise CheckpointError(f"{source / 'config.json'} says draft_vocab_size {said}, and {held} in {source}")
    settings |= {
        "draft_vocabulary": draft_maps.read(maps, rows, model.vocab_size, str(source)),
        "own_embedding": "embed_tokens.weight" in found,
        "own_head": drafted is not None,
    }
    # Without a list, there is one for each layer of the head.
    count = count_taps(found, read_taps, model.num_layers, model.hidden_size, source)
    layers = raw.get("num_target_layers")
    try:
        module = _abstract(model, {**settings, "taps": (0,) * count})
    except ValueError as error:
        raise CheckpointError(f"{source / 'config.json'}: {error}") from error
    tensors = match(module, found, published, str(source))
    return PublishedHead(_layout_of(raw), model, read_taps, settings, layers, tensors)


def convert(
    source: Path, out: Path, target: Path, dtype: str | None = None, taps: Sequence[int] | None = None
) -> heads.HeadConfig:
    """Converts a published head into the head `out`, and reports its layout and taps.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        target: the checkpoint that the head was trained for.
        dtype: dtype of every parameter; None keeps each tensor's own.
        taps: as in `plan`.

    Raises:
        CheckpointError: the source is invalid or for another target; nothing is left at `out`.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    planned, goal = plan(source, taps), config_json.read_config(target)
    heads.check_same_shape(source, planned.model, goal.model)
    check_depth(planned.target_layers, goal.model, source)
    layers = planned.layers_read(goal.model.num_layers)
    if goal.model.num_layers in layers:
        raise CheckpointError(
            f"the head at {source} reads the output of the target's last layer; projects disagree whether that is "
            "before or after the final norm, so jaxspec does not support it"
        )
    source_dtype = main_dtype(planned.tensors.values())
    tensors, embedding = without_targets(planned.tensors, "embedding", "embedding", source_dtype, target, source)
    tensors, lm_head = without_targets(tensors, "head.kernel", lm_head_of(goal), source_dtype, target, source)
    settings = {"taps": list(layers), **planned.settings, "own_embedding": embedding, "own_head": lm_head}
    config = heads.HeadConfig(Dflash.name, planned.model, dtype or source_dtype, source_dtype, settings)
    said = LAYOUTS[planned.layout], planned.taps.reason
    return write_fused(Dflash(), "DFlash head", config, tensors, source, out, goal.model, dtype, said)


Format = Literal["dflash", "speculators"]


def export(source: Path, out: Path, form: Format, target: Path | None = None, verifier: str | None = None) -> None:
    """Writes a head in a published format, as safetensors.

    Args:
        source: folder of the head.
        out: folder to make; must not exist.
        form: `dflash` for DFlash's own code, `speculators` for speculators and vLLM, whose files repeat the target's
            embedding and LM head.
        target: the head's target; None: the checkpoint whose `heads` folder contains the head.
        verifier: the target's name in a `speculators` config, a hub id or a folder; None: the target's folder.

    Raises:
        CheckpointError: `source` is not a DFlash head, its target is not known or does not fit, or the format cannot
            describe the head.
        ValueError: `out` exists.
        DiskFullError: the disk has too little space; nothing is left at `out`.
    """
    config = head_config(source, Dflash.name, "dflash or speculators")
    target = target_of(source) if target is None else target
    goal = config_json.read_config(target)
    heads.check_same_shape(source, config.model, goal.model)
    options = DflashOptions.from_settings(config.settings)
    arrays = head_arrays(source, config, _abstract(config.model, config.settings))
    if options.markov_rank:
        raise CheckpointError(
            f"the head at {source} has a Markov term (--markov-rank {options.markov_rank}), which no published format "
            "of DFlash heads has"
        )
    layers = _layers(config, goal)
    if form == "dflash":
        values = _official(source, options, layers, goal)
    else:
        values = {
            **speculators_config("dflash", layers, goal, target, verifier, options.block - 1),
            "architectures": ["DFlashSpeculator"],
            INPUTS: list(options.taps),
            "block_size": options.block,
            "mask_token_id": options.mask_token,
            "sample_from_anchor": False,
        }
        arrays |= _of_target(arrays, goal, target, config.source_dtype)
        values["draft_vocab_size"] = arrays["head.kernel"].shape[-1]
    maps = draft_maps.write(options.draft_vocabulary, config.model.vocab_size)
    write_published(out, {**arrays, **maps}, values, "model.safetensors", published)
    say(f"wrote {out}: DFlash head for {target}, which drafts blocks of {options.block}, {config.source_dtype}")


def _layers(config: heads.HeadConfig, goal: CheckpointConfig) -> dict[str, Any]:
    """The config.json of the head's layers as a Qwen3 model, whatever the target is."""
    model = dataclasses.replace(goal, family="qwen3", model=config.model, source_dtype=config.source_dtype)
    kinds = ["full_attention"] * config.model.num_layers
    return {**hf_config.from_checkpoint(model), "sliding_window": None, "layer_types": kinds}


def _official(source: Path, options: DflashOptions, layers: dict[str, Any], goal: CheckpointConfig) -> dict[str, Any]:
    for differs, what in (
        (options.own_embedding, "has an embedding of its own"),
        (options.with_lm_head, "has an LM head of its own"),
        (0 in options.taps, "reads the target's embeddings, as the input of layer 0"),
    ):
        if differs:
            raise CheckpointError(
                f"the head at {source} {what}, which DFlash's own code does not know; use --format speculators"
            )
    return {
        **layers,
        "architectures": ["DFlashDraftModel"],
        "block_size": options.block,
        "num_target_layers": goal.model.num_layers,
        SECTION: {"mask_token_id": options.mask_token, OUTPUTS: [tap - 1 for tap in options.taps]},
    }


def _of_target(arrays: dict[str, Any], goal: CheckpointConfig, target: Path, dtype: str) -> dict[str, Any]:
    """The target's embedding and LM head, if the head has none of its own, by jaxspec's names.

    Raises:
        CheckpointError: the LM head is quantised.
    """
    lm_head = lm_head_of(goal)
    both = {"embedding": "embedding", "head.kernel": lm_head}
    wanted = {ours: name for ours, name in both.items() if ours not in arrays}
    if None in wanted.values():
        raise CheckpointError(
            f"{target} holds {goal.quantize} weights, and files of speculators repeat the LM head in floats; name a "
            "checkpoint that was converted without --quantize"
        )
    found = parameters.read_arrays(target / "params", set(wanted.values())) if wanted else {}
    turned = lambda ours, name: found[name].T if ours == "head.kernel" and name == "embedding" else found[name]
    return {ours: turned(ours, name).astype(dtype) for ours, name in wanted.items()}
