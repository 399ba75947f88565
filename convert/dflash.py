"""DFlash heads in the layouts of DFlash's authors and of speculators and vLLM.

The authors' files contain neither embedding nor LM head, those of speculators and vLLM both, and sometimes a draft
vocabulary. The authors name the layers that a head reads by their outputs, speculators by their inputs.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_kinds import INPUTS, OUTPUTS
from jaxspec.convert.head_parts import Files, OwnHead, PublishedHead, Taps, is_speculators, section
from jaxspec.convert.names import theirs
from jaxspec.drafters.dflash import Dflash, DflashOptions, official_taps
from jaxspec.model.config import LlamaConfig

_SECTION = "dflash_config"
_BLOCK = {"block_size": "block", "mask_token_id": "mask_token"}
_OURS = {"fc.kernel": "fc.weight", "context_norm": "hidden_norm.weight"}


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    raw = head_kinds.read(source, "dflash")
    model, given = _shape_of(raw, source), {**raw, **section(raw, _SECTION, source / "config.json")}
    read_taps, settings = _read_taps(raw, given, source, taps, model.num_layers), _block(raw, given, source)
    found = head_parts.open_head(source, ["layers.0.self_attn.q_proj.weight"])
    settings |= {
        "draft_vocabulary": head_parts.read_draft_vocabulary(raw, found, model.vocab_size, source),
        "own_embedding": "embed_tokens.weight" in found,
        "own_head": "lm_head.weight" in found,
    }
    layout = "the layout of speculators and vLLM" if is_speculators(raw) else "the layout of DFlash's authors"
    return PublishedHead(
        Dflash(), "DFlash head", model.vocab_size, model.hidden_size, settings, _published,
        model=model, layout=layout, taps=read_taps, target_layers=raw.get("num_target_layers"),
    ).with_tensors(found, source)  # fmt: skip


def files(head: OwnHead, form: str) -> Files:
    """The files of a head for DFlash's own code, or for speculators and vLLM; see `heads.export`."""
    config, (target, goal) = head.config, head.with_target()
    options, arrays = DflashOptions.from_settings(config.settings), head.arrays
    full = {"sliding_window": None, "layer_types": ["full_attention"] * config.model.num_layers}
    layers = {**head_parts.as_llama(head), **full}
    if options.markov_rank:
        raise CheckpointError(
            f"the head at {head.path} has a Markov term (--markov-rank {options.markov_rank}), which no published "
            "format of DFlash heads has"
        )
    if form == "speculators":
        arrays = _with_targets(head)
        values = {
            **head_parts.speculators_config(head, layers, options.block - 1),
            "architectures": ["DFlashSpeculator"],
            INPUTS: list(options.taps),
            "block_size": options.block,
            "mask_token_id": options.mask_token,
            "sample_from_anchor": False,
            "draft_vocab_size": arrays["head.kernel"].shape[-1],
        }
    else:
        for differs, what in (
            (options.own_embedding, "has an embedding of its own"),
            (options.with_lm_head, "has an LM head of its own"),
            (0 in options.taps, "reads the target's embeddings, as the input of layer 0"),
        ):
            if differs:
                raise CheckpointError(
                    f"the head at {head.path} {what}, which DFlash's own code does not support; use --format "
                    "speculators"
                )
        values = {
            **layers,
            "architectures": ["DFlashDraftModel"],
            "block_size": options.block,
            "num_target_layers": goal.model.num_layers,
            _SECTION: {"mask_token_id": options.mask_token, OUTPUTS: [tap - 1 for tap in options.taps]},
        }
    summary = f"DFlash head for {target}, which drafts blocks of {options.block}"
    return Files(values, arrays, _published, summary)


def _with_targets(head: OwnHead) -> dict[str, Any]:
    """The arrays of a head, with the target's embedding and LM head where it has none of its own."""
    target, goal = head.with_target()
    both = {"embedding": "embedding", "head.kernel": head_parts.lm_head_of(goal)}
    wanted = {ours: name for ours, name in both.items() if ours not in head.arrays}
    if None in wanted.values():
        raise CheckpointError(
            f"{target} holds {goal.quantize} weights, and files of speculators repeat the LM head in floats; name a "
            "checkpoint that was converted without --quantize"
        )
    found = parameters.read_arrays(target / "params", set(wanted.values())) if wanted else {}
    turned = lambda ours, name: found[name].T if ours == "head.kernel" and name == "embedding" else found[name]
    targets = {ours: turned(ours, name).astype(head.config.source_dtype) for ours, name in wanted.items()}
    return {**head.arrays, **targets}


def _published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layers.0.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    return _OURS.get(ours) or theirs(ours).removeprefix("model.")


def _shape_of(raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layers. They are Qwen3 layers, whatever the target is."""
    file, layers = source / "config.json", head_parts.layers_config(raw, source)
    read_as = {"model_type": "qwen3", "tie_word_embeddings": False, "is_causal": None}
    shape = head_parts.shape_of(layers, raw, source, **read_as)
    ropes = (section(layers, key, file) for key in ("rope_parameters", "rope_scaling"))
    if not any(where.get("rope_theta") for where in (layers, *ropes)):
        raise CheckpointError(
            f"{file} gives no rope_theta, and projects disagree on its default (transformers 10,000, vLLM 1,000,000); "
            "add the value of the head's training"
        )
    return shape


def _read_taps(
    raw: Mapping[str, Any], given: Mapping[str, Any], source: Path, override: Sequence[int] | None, count: int
) -> Taps:
    """The layers whose inputs are fused. Without a list, the head reads as many as the `count` of its own layers.

    `given` has the settings at the top level and in the head's own section, `override` what the user names.
    """
    file, default = source / "config.json", functools.partial(official_taps, count=count)
    if override is not None:
        return Taps(tuple(override), "as given by --taps", default)
    own, other = (INPUTS, OUTPUTS) if is_speculators(raw) else (OUTPUTS, INPUTS)
    if other in given:
        whose = "speculators and vLLM" if is_speculators(raw) else "DFlash's authors"
        raise CheckpointError(f"{file} has {other}, unlike the layout of {whose}; name the layers with --taps")
    layers = head_parts.listed_layers(raw if own == INPUTS else given, own, file)
    if own == OUTPUTS and layers is not None:
        return head_parts.tapped_after(layers, OUTPUTS, default)
    if own == OUTPUTS:
        return Taps(None, "those of DFlash's own code, since config.json lists none", default)
    if layers is None:
        raise CheckpointError(f"{file} has no {INPUTS}: name the layers whose inputs the head reads with --taps")
    return Taps(layers, f"{INPUTS}, read as layers whose inputs these are", default)


def _block(raw: Mapping[str, Any], given: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The settings of `DflashOptions` about blocks: `block` and `mask_token`. Raises CheckpointError without them."""
    file = source / "config.json"
    if OUTPUTS in raw and "sample_from_anchor" not in given:
        raise CheckpointError(
            f"{file} has {OUTPUTS} outside {_SECTION}, like DeepSpec, whose rows draft the next position; add "
            "sample_from_anchor: false if those of this head draft their own"
        )
    for key in _BLOCK:
        if key not in given:
            raise CheckpointError(f"{file} gives no {key}, which a DFlash head needs; add it")
        if type(given[key]) is not int or given[key] < 0:
            raise CheckpointError(f"{file} must give a whole number as {key!r}, and it has {given[key]!r}")
    return {ours: given[key] for key, ours in _BLOCK.items()}
