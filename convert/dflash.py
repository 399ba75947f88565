"""Block heads, DFlash's and DSpark's, in the layouts of DFlash's authors, DeepSpec, SpecForge, speculators and vLLM.

All have the same layers. They differ, often visibly only in a setting or a class name, in whether a row drafts its own
position or the next one, whether the block is causal, whether listed layers are named by their outputs or inputs,
whether embedding and LM head are in the files, and the terms that DSpark adds.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_kinds import INPUTS, OUTPUTS, classes_of
from jaxspec.convert.head_parts import Files, OwnHead, PublishedHead, Taps, is_speculators, section
from jaxspec.convert.hf_config import boolean
from jaxspec.convert.names import theirs
from jaxspec.convert.readers import Tensor
from jaxspec.drafters.dflash import Dflash, DflashOptions, official_taps
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig

Layout = Literal["DFlash's authors", "DeepSpec", "SpecForge", "speculators and vLLM"]
Rows = Literal["own", "next"]
_SECTIONS = ("dflash_config", "dspark_config")
_BLOCK = {"block_size": "block", "mask_token_id": "mask_token"}
_CAUSAL = ("is_causal", "causal", "causal_head")  # of DFlash's newer code, of Automodel, of JetSpec
_MARKOV, _CONFIDENCE = ("markov_w1", "markov_w2"), ("weight", "bias")
_OURS = {
    "fc.kernel": "fc.weight",
    "context_norm": "hidden_norm.weight",
    "markov.embedding": "markov_head.markov_w1.weight",
    "markov.head.kernel": "markov_head.markov_w2.weight",
    "confidence.proj.kernel": "confidence_head.proj.weight",
    "confidence.proj.bias": "confidence_head.proj.bias",
}
_ASSERTED = (*_BLOCK, OUTPUTS, "num_anchors", "markov_rank", "enable_confidence_head")  # DeepSpec has no defaults
_ANCHORS = 512  # DeepSpec's default, in training; its code requires the setting


def plan(source: Path, taps: Sequence[int] | None = None, rows: Rows | None = None) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    raw = head_kinds.read(source, "dflash")
    file, layout = source / "config.json", _layout_of(raw)
    given = dict(raw)
    for name in _SECTIONS:
        given |= section(raw, name, file)
    layers = head_parts.layers_config(raw, source)
    model, windows = _shape_of(layers, raw, source), head_parts.windows_of(layers, source)
    read_taps = _read_taps(raw, given, source, taps, model.num_layers)
    tensors = head_parts.open_head(source, ["layers.0.self_attn.q_proj.weight"])
    found = {_without_prefix(name): tensor for name, tensor in tensors.items()}
    settings = {
        **_block(given, source, layout),
        **_terms(given, found, source, layout),
        "anchor": _anchor(raw, given, source, layout, rows),
        "causal": list(_causal(raw, given, source, windows or (0,) * model.num_layers)),
        "windows": list(windows),
        "draft_vocabulary": head_parts.read_draft_vocabulary(raw, found, model.vocab_size, source),
        "own_embedding": "embed_tokens.weight" in found,
        "own_head": "lm_head.weight" in found,
    }
    if not any(settings["causal"]):
        settings["causal"] = []
    head = PublishedHead(
        Dflash(), "block head", model.vocab_size, model.hidden_size, settings, _published,
        model=model, options=DflashOptions, layout=f"the layout of {layout}", taps=read_taps,
        target_layers=raw.get("num_target_layers"),
    ).with_tensors(found, source)  # fmt: skip
    kind = DflashOptions.from_settings({**settings, "taps": [0]}).kind  # the taps may depend on the target
    return dataclasses.replace(head, title=f"{kind} head")


def files(head: OwnHead, form: str) -> Files:
    """The files of a head for DFlash's own code, DeepSpec's, or speculators and vLLM; see `heads.export`."""
    options, (target, goal) = DflashOptions.from_settings(head.config.settings), head.with_target()
    layers = head_parts.with_windows(head_parts.as_llama(head), options.windows)
    _check_format(head, options, form)
    arrays = head.arrays if form == "dflash" else head_parts.with_targets(head, "embedding", "head.kernel")
    rows = {"sample_from_anchor": options.anchor}
    terms = {
        "markov_rank": options.markov_rank,
        **({"markov_head_type": "vanilla"} if options.markov_rank else {}),
        "enable_confidence_head": options.confidence != "none",
        **({"confidence_head_with_markov": options.confidence == "markov"} if options.confidence != "none" else {}),
    }
    block = {"block_size": options.block, "mask_token_id": options.mask_token}
    if form == "speculators":
        kind = "dspark" if options.kind == "DSpark" else "dflash"
        if options.anchor and kind == "dflash":
            say("warning: rows of this head draft the next position, which speculators reads, and vLLM only for DSpark")
        if any(options.windows):
            rows["sliding_window_non_causal"] = not any(options.causal)
        values = {
            **head_parts.speculators_config(head, layers, options.levels, kind),
            "architectures": ["DSparkSpeculator" if kind == "dspark" else "DFlashSpeculator"],
            INPUTS: list(options.taps),
            **block,
            "draft_vocab_size": arrays["head.kernel"].shape[-1],
            **rows,
            **(terms if kind == "dspark" else {}),
        }
    elif form == "deepspec":
        outputs = {OUTPUTS: [tap - 1 for tap in options.taps], "num_target_layers": goal.model.num_layers}
        values = {
            **layers, "architectures": ["Qwen3DSparkModel"], "tie_word_embeddings": False, **block, **outputs,
            "num_anchors": _ANCHORS, **rows, **terms, **dict.fromkeys(_CAUSAL, False),
        }  # fmt: skip
    else:
        values = {
            **layers,
            "architectures": ["DFlashDraftModel"],
            "block_size": options.block,
            "num_target_layers": goal.model.num_layers,
            **rows,
            "dflash_config": {"mask_token_id": options.mask_token, OUTPUTS: [tap - 1 for tap in options.taps]},
        }
        if len(set(options.causal)) < 2:  # otherwise layers with a window are causal and others are not, as without it
            values["is_causal"] = any(options.causal)
            values["dflash_config"] |= dict.fromkeys(_CAUSAL[1:], any(options.causal))
    return Files(values, arrays, _published, f"{options.kind} head for {target}, which drafts {options.levels} tokens")


def _check_format(head: OwnHead, options: DflashOptions, form: str) -> None:
    """Raises CheckpointError if a format, or the code that reads it, does not support the head."""
    found = _unsupported(options, head.config.model.num_layers)
    if what := found[form]:
        others = [each for each, differs in found.items() if differs is None]
        advice = f"; use --format {' or '.join(others)}" if others else ", nor can the others"
        raise CheckpointError(f"the head at {head.path} {what}, which --format {form} cannot describe{advice}")


def _unsupported(options: DflashOptions, layers: int) -> dict[str, str | None]:
    """What a head has that a format does not support, by format; None if there is nothing."""
    slides = [window > 0 for window in options.windows] or [False] * layers
    causal = list(options.causal) or [False] * layers
    of_windows = {each for each, slide in zip(causal, slides, strict=True) if slide}
    of_others = {each for each, slide in zip(causal, slides, strict=True) if not slide}
    checks = {
        "dflash": (
            (options.own_embedding, "has an embedding of its own"),
            (options.with_lm_head, "has an LM head of its own"),
            (0 in options.taps, "reads the target's embeddings, as the input of layer 0"),
            (options.kind == "DSpark", "has DSpark's Markov term or confidence head"),
            (options.anchor, "drafts the next position in each row"),
            (len(set(causal)) > 1 and causal != slides, "is causal in some layers only"),
        ),
        "deepspec": (
            (not options.anchor, "drafts its own position in each row"),
            (options.draft_vocabulary is not None, "has a draft vocabulary"),
            (any(slides), "has layers with a sliding window"),
            (any(causal), "has causal blocks"),
            (disorder := head_parts.disorder(options.taps), disorder),
        ),
        "speculators": (
            (True in of_others, "has causal blocks in layers without a sliding window"),
            (len(of_windows) > 1, "is causal in some of its layers with a sliding window only"),
        ),
    }
    return {form: next((what for differs, what in some if differs), None) for form, some in checks.items()}


def _published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layers.0.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    return _OURS.get(ours) or theirs(ours).removeprefix("model.")


def _without_prefix(name: str) -> str:
    """Early SpecForge has DSpark's terms under `logit_head`."""
    inner = name.removeprefix("logit_head.")
    return inner if inner in _OURS.values() else name


def _layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has."""
    if is_speculators(raw):
        return "speculators and vLLM"
    classes = classes_of(raw)
    if "Qwen3DSparkModel" in classes:
        return "DeepSpec"
    nested = raw.get("dflash_config") or {}
    if "DSparkDraftModel" in classes or raw.get("dspark_config") or "dspark" in (
        raw.get("projector_type"), nested.get("projector_type"),
    ):  # fmt: skip
        return "SpecForge"
    return "DFlash's authors"


def _shape_of(layers: Mapping[str, Any], raw: Mapping[str, Any], source: Path) -> LlamaConfig:
    """Shape of the head's layers. They are Qwen3 layers, whatever the target is."""
    file = source / "config.json"
    read_as = {"model_type": "qwen3", "tie_word_embeddings": False, "is_causal": None, **head_parts.FULL}
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

    `given` has the settings at the top level and in the head's own sections, `override` what the user names.
    """
    file, default = source / "config.json", functools.partial(official_taps, count=count)
    if override is not None:
        return Taps(tuple(override), "as given by --taps", default)
    own, other = (INPUTS, OUTPUTS) if is_speculators(raw) else (OUTPUTS, INPUTS)
    if other in given:
        whose = "speculators and vLLM" if is_speculators(raw) else "DFlash's authors"
        raise CheckpointError(f"{file} has {other}, unlike the layout of {whose}; name the layers with --taps")
    ascending = _layout_of(raw) == "DeepSpec"
    layers = head_parts.listed_layers(raw if own == INPUTS else given, own, file, ascending)
    if own == OUTPUTS and layers is not None:
        return head_parts.tapped_after(layers, OUTPUTS, default)
    if own == OUTPUTS:
        return Taps(None, "those of DFlash's own code, since config.json lists none", default)
    if layers is None:
        raise CheckpointError(f"{file} has no {INPUTS}: name the layers whose inputs the head reads with --taps")
    return Taps(layers, f"{INPUTS}, read as layers whose inputs these are", default)


def _block(given: Mapping[str, Any], source: Path, layout: Layout) -> dict[str, Any]:
    """The settings of `DflashOptions` about blocks: `block` and `mask_token`. Raises CheckpointError without them."""
    file = source / "config.json"
    for key in _ASSERTED if layout == "DeepSpec" else _BLOCK:
        if given.get(key) is None:
            raise CheckpointError(f"{file} gives no {key}, which this head's own code requires; add it")
    for key in _BLOCK:
        if type(given[key]) is not int or given[key] < 0:
            raise CheckpointError(f"{file} must give a whole number as {key!r}, and it has {given[key]!r}")
    return {ours: given[key] for key, ours in _BLOCK.items()}


def _anchor(
    raw: Mapping[str, Any], given: Mapping[str, Any], source: Path, layout: Layout, override: Rows | None
) -> bool:
    """Whether each row drafts the next position, and not its own. Raises CheckpointError where nothing tells."""
    file = source / "config.json"
    if override is not None:
        return override == "next"
    flag = boolean(given, "sample_from_anchor", file)
    if flag is not None:
        return flag
    advice = "add sample_from_anchor, true if each row drafts the next position, or give --rows"
    named = set(map(str, classes_of(raw))) & {"DFlashDraftModel", "Qwen3DFlashDraftModel"}
    if layout == "SpecForge" and named and given.get("projector_type") is None:
        raise CheckpointError(f"{file} has a dspark_config, and architectures {named.pop()}; {advice}")
    if layout in ("DeepSpec", "SpecForge"):
        return True
    if raw.get("speculators_model_type") == "dflash" and any("DSpark" in str(name) for name in classes_of(raw)):
        raise CheckpointError(f"{file} has the type dflash, and the class of a DSpark head; {advice}")
    if layout == "speculators and vLLM" and raw.get("speculators_model_type") == "dspark":
        drafted, block = _speculative_tokens(raw), given.get("block_size", 0)
        if drafted not in (block, block - 1):
            raise CheckpointError(
                f"{file} has no sample_from_anchor, and its proposal_methods draft {drafted} tokens of blocks of "
                f"{block}, so which position a row drafts is not known; {advice}"
            )
        return drafted == block
    if OUTPUTS in raw and layout == "DFlash's authors":
        raise CheckpointError(
            f"{file} has {OUTPUTS} outside dflash_config, like DeepSpec, whose rows draft the next position, "
            f"and another class; {advice}"
        )
    return False


def _speculative_tokens(raw: Mapping[str, Any]) -> Any:
    """What vLLM drafts per round by default, from `speculators_config`; None if it is not there."""
    settings = raw.get("speculators_config")
    methods = settings.get("proposal_methods") if isinstance(settings, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return first.get("speculative_tokens") if isinstance(first, dict) else None


def _causal(raw: Mapping[str, Any], given: Mapping[str, Any], source: Path, windows: Sequence[int]) -> tuple[bool, ...]:
    """Whether the block is causal in each layer.

    Without a setting it is in layers with a window, as vLLM and SpecForge read it, and in no others. Automodel's layers
    never are, and its class names are DeepSpec's and DFlash's with another prefix, so these need the setting.
    """
    file, slides = source / "config.json", [window > 0 for window in windows]
    flags = {key: boolean(given, key, file) for key in _CAUSAL if given.get(key) is not None}
    if len(set(flags.values())) > 1:
        told = " and ".join(f"{key} {value}" for key, value in flags.items())
        raise CheckpointError(f"{file} contradicts itself about causal blocks: {told}")
    flag = next(iter(flags.values()), None)
    if is_speculators(raw):
        non_causal = bool(boolean(raw, "sliding_window_non_causal", file))
        causal = tuple(slide and not non_causal for slide in slides)
        if flag is not None and set(causal) != {flag}:
            raise CheckpointError(
                f"{file} sets {next(iter(flags))!r} to {flag}, and by sliding_window_non_causal and layer_types its "
                "layers are otherwise; delete the wrong one"
            )
        return causal
    if raw.get("sliding_window_non_causal") is not None:
        raise CheckpointError(
            f"{file} sets 'sliding_window_non_causal', which only speculators' format has; set is_causal instead"
        )
    if flag is not None:
        return (flag,) * len(slides)
    if any(slides) and not {"Qwen3DSparkModel", "Qwen3DFlashDraftModel"}.isdisjoint(map(str, classes_of(raw))):
        raise CheckpointError(
            f"{file} has layers with a sliding window and no is_causal, and projects disagree on causal blocks there; "
            "add is_causal"
        )
    return tuple(slides)


def _terms(given: Mapping[str, Any], found: Mapping[str, Tensor], source: Path, layout: Layout) -> dict[str, Any]:
    """The settings about DSpark's terms. Raises CheckpointError where config and tensors disagree."""
    file, speculators = source / "config.json", given.get("speculators_model_type") == "dspark"
    rank, kind = given.get("markov_rank", 256 if speculators else 0), given.get("markov_head_type", "vanilla")
    if type(rank) is not int or rank < 0:
        raise CheckpointError(f"{file} must give a whole number as 'markov_rank', and it has {rank!r}")
    if kind != "vanilla":
        raise CheckpointError(f"{file} sets 'markov_head_type' to {kind!r}, and jaxspec only reads 'vanilla'")
    enabled = boolean(given, "enable_confidence_head", file)
    if enabled is None:
        alpha = given.get("confidence_head_alpha", 0)
        if not isinstance(alpha, int | float) or isinstance(alpha, bool):
            raise CheckpointError(f"{file} must give a number as 'confidence_head_alpha', and it has {alpha!r}")
        enabled = speculators or alpha > 0
    with_markov = boolean(given, "confidence_head_with_markov", file)
    if enabled and with_markov is None and layout == "DeepSpec":
        raise CheckpointError(
            f"{file} gives no confidence_head_with_markov, which this head's own code requires; add it"
        )
    with_markov = speculators if with_markov is None else with_markov
    projector = given.get("projector_type", "dspark" if layout == "SpecForge" else "dflash")
    if projector not in ("dflash", "dspark") or (layout == "SpecForge") != (projector == "dspark"):
        raise CheckpointError(f"{file} sets 'projector_type' to {projector!r}, unlike its other settings")
    plain = layout == "DFlash's authors" or given.get("speculators_model_type") == "dflash"
    if plain and (rank or enabled):
        raise CheckpointError(
            f"{file} sets {'markov_rank' if rank else 'enable_confidence_head'}, which only DSpark heads have, and its "
            "class or type is DFlash's; correct one of them"
        )
    for key, wanted, names in (
        ("markov_rank", rank, [f"markov_head.{name}.weight" for name in _MARKOV]),
        ("enable_confidence_head", enabled, [f"confidence_head.proj.{name}" for name in _CONFIDENCE]),
    ):
        held = [name for name in names if name in found]
        if bool(wanted) != bool(held):
            which = f"tensor {held[0]} is in the files" if held else f"tensor {names[0]} is missing"
            raise CheckpointError(
                f"{file} has {key} {wanted}, and {which}; the files or their config are another head's"
            )
    confidence = ("markov" if with_markov else "hidden") if enabled else "none"
    return {"markov_rank": rank, "confidence": confidence}
