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
from jaxspec.convert.head_kinds import INPUTS, OUTPUTS
from jaxspec.convert.head_parts import Files, OwnHead, PublishedConfig, PublishedHead, Taps, Unsupported, section
from jaxspec.convert.hf_config import boolean, integer
from jaxspec.convert.names import theirs
from jaxspec.convert.readers import Tensor
from jaxspec.drafters.dflash import Dflash, DflashOptions, official_taps
from jaxspec.host.terminal import say

Rows = Literal["own", "next"]
_BLOCK = {"block_size": "block", "mask_token_id": "mask_token"}
_CAUSAL = ("is_causal", "causal", "causal_head")  # of DFlash's newer code, of Automodel, of JetSpec
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
    config = head_kinds.read(source, "dflash")
    # Heads have Qwen3 layers, whatever the target is.
    read_as = {"model_type": "qwen3", "tie_word_embeddings": False, "is_causal": None, **head_parts.FULL}
    model, windows = head_parts.shape_of(config, config.layers, **read_as)
    ropes = (section(config.layers, key, config.file) for key in ("rope_parameters", "rope_scaling"))
    if not any(where.get("rope_theta") for where in (config.layers, *ropes)):
        raise CheckpointError(f"{config.file} gives no rope_theta, and projects disagree on its default; add its own")
    read_taps = _read_taps(config, taps, model.num_layers)
    stored = head_parts.open_head(source, ["layers.0.self_attn.q_proj.weight"])
    # Early SpecForge's names of DSpark's terms. Later ones come first, as in its own code.
    early = {f"logit_head.{name}": name for name in _OURS.values()}
    tensors = {early[name]: tensor for name, tensor in stored.items() if name in early}
    tensors |= {name: tensor for name, tensor in stored.items() if name not in early}
    causal = _causal(config, windows or (0,) * model.num_layers)
    for key in _ASSERTED if config.layout == "DeepSpec" else _BLOCK:
        if config.given.get(key) is None:
            raise CheckpointError(f"{config.file} gives no {key}, which this head's own code requires; add it")
    settings = {
        **{ours: integer(config.given, key, str(config.file), least=0) for key, ours in _BLOCK.items()},
        **_terms(config, tensors),
        "anchor": _anchor(config) if rows is None else rows == "next",
        "causal": list(causal) if any(causal) else [],
        "windows": list(windows),
        "draft_vocabulary": head_parts.read_draft_vocabulary(config, tensors, model.vocab_size),
        "own_embedding": "embed_tokens.weight" in tensors,
        "own_head": "lm_head.weight" in tensors,
    }
    head = PublishedHead(
        config, Dflash(), "block head", model.vocab_size, model.hidden_size, settings, _published,
        model=model, options=DflashOptions, taps=read_taps,
    ).with_tensors(tensors)  # fmt: skip
    kind = DflashOptions.from_settings({**settings, "taps": [0]}).kind  # the taps may depend on the target
    return dataclasses.replace(head, title=f"{kind} head")


def files(head: OwnHead, form: str) -> Files:
    """The files of a head for DFlash's own code, DeepSpec's, or speculators and vLLM; see `heads.export`."""
    options, (target, goal) = DflashOptions.from_settings(head.config.settings), head.with_target()
    layers = head_parts.with_windows(head_parts.as_llama(head), options.windows)
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


def unsupported(head: OwnHead) -> Unsupported:
    """What each format does not support; see `heads.export`."""
    options, layers = DflashOptions.from_settings(head.config.settings), head.config.model.num_layers
    slides = [window > 0 for window in options.windows] or [False] * layers
    causal = list(options.causal) or [False] * layers
    of_windows = {each for each, slide in zip(causal, slides, strict=True) if slide}
    of_others = {each for each, slide in zip(causal, slides, strict=True) if not slide}
    return {
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
            head_parts.disorder(options.taps),
        ),
        "speculators": (
            (True in of_others, "has causal blocks in layers without a sliding window"),
            (len(of_windows) > 1, "is causal in some of its layers with a sliding window only"),
        ),
    }


def _published(ours: str) -> str:
    """Published name of a jaxspec parameter: `layers.0.mlp.up.kernel` → `layers.0.mlp.up_proj.weight`."""
    return _OURS.get(ours) or theirs(ours).removeprefix("model.")


def _read_taps(config: PublishedConfig, override: Sequence[int] | None, count: int) -> Taps:
    """The layers whose inputs are fused: those that the user names, those listed, or as many as its own `count`."""
    if override is not None:
        return Taps(tuple(override), "as given by --taps")
    own, other = (INPUTS, OUTPUTS) if config.is_speculators else (OUTPUTS, INPUTS)
    if other in config.given:
        raise CheckpointError(f"{config.file} has {other}, unlike others of its layout; name the layers with --taps")
    values = config.raw if config.is_speculators else config.given
    layers = head_parts.listed_layers(values, own, config.file, ascending=config.layout == "DeepSpec")
    if config.is_speculators:
        if layers is None:
            raise CheckpointError(f"{config.file} has no {own}; name the layers whose inputs it reads with --taps")
        return Taps(layers, f"{own}, read as layers whose inputs these are")
    if layers is not None:
        return head_parts.tapped_after(layers, own)
    default = functools.partial(official_taps, count=count)
    return Taps(default, "those of DFlash's own code, since config.json lists none")


def _anchor(config: PublishedConfig) -> bool:
    """Whether each row drafts the next position, and not its own. Raises CheckpointError where that is not clear."""
    raw, file, layout = config.raw, config.file, config.layout
    flag = boolean(config.given, "sample_from_anchor", file)
    if flag is not None:
        return flag
    advice = "add sample_from_anchor, true if each row drafts the next position, or give --rows"
    named = set(map(str, config.classes)) & {"DFlashDraftModel", "Qwen3DFlashDraftModel"}
    if layout == "SpecForge and SGLang" and named and config.given.get("projector_type") is None:
        raise CheckpointError(f"{file} has a dspark_config, and architectures {named.pop()}; {advice}")
    if layout in ("DeepSpec", "SpecForge and SGLang"):
        return True
    if raw.get("speculators_model_type") == "dflash" and any("DSpark" in str(name) for name in config.classes):
        raise CheckpointError(f"{file} has the type dflash, and the class of a DSpark head; {advice}")
    if raw.get("speculators_model_type") == "dspark":
        block = config.given["block_size"]
        try:  # what vLLM drafts per round by default
            drafted = raw["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
        except (KeyError, TypeError, IndexError):
            drafted = None
        if drafted not in (block, block - 1):
            raise CheckpointError(f"{file}: its proposal_methods draft {drafted} tokens of blocks of {block}; {advice}")
        return drafted == block
    if OUTPUTS in raw and not config.is_speculators:
        raise CheckpointError(f"{file} has {OUTPUTS} outside dflash_config, like DeepSpec, and another class; {advice}")
    return False


def _causal(config: PublishedConfig, windows: Sequence[int]) -> tuple[bool, ...]:
    """Whether the block is causal in each layer. Raises CheckpointError where that is not known."""
    # Without a setting it is in layers with a window, as vLLM and SpecForge read it, and in no others. Automodel's
    # layers never are, and its class names are DeepSpec's and DFlash's with another prefix, so these need the setting.
    raw, file, slides = config.raw, config.file, [window > 0 for window in windows]
    flags = {key: boolean(config.given, key, file) for key in _CAUSAL if config.given.get(key) is not None}
    if len(set(flags.values())) > 1:
        given = " and ".join(f"{key} {value}" for key, value in flags.items())
        raise CheckpointError(f"{file} contradicts itself about causal blocks: {given}")
    flag = next(iter(flags.values()), None)
    if config.is_speculators:
        non_causal = bool(boolean(raw, "sliding_window_non_causal", file))
        causal = tuple(slide and not non_causal for slide in slides)
        if flag is not None and set(causal) != {flag}:
            raise CheckpointError(f"{file} sets {next(iter(flags))!r} to {flag}, unlike sliding_window_non_causal")
        return causal
    if raw.get("sliding_window_non_causal") is not None:
        raise CheckpointError(f"{file} has sliding_window_non_causal, as only speculators' format has; set is_causal")
    if flag is not None:
        return (flag,) * len(slides)
    if any(slides) and not {"Qwen3DSparkModel", "Qwen3DFlashDraftModel"}.isdisjoint(map(str, config.classes)):
        raise CheckpointError(f"{file} has windows and no is_causal, and projects disagree on causal blocks there")
    return tuple(slides)


def _terms(config: PublishedConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings about DSpark's terms. Raises CheckpointError where config and tensors disagree."""
    given, file, layout = config.given, config.file, config.layout
    speculators = given.get("speculators_model_type") == "dspark"
    rank = integer(given, "markov_rank", str(file), otherwise=256 * speculators, least=0)
    # The number of heads shows whether they share keys and values (gqa) or not (mha).
    for key, known in {"markov_head_type": ("vanilla",), "attention_mode": ("gqa", "mha")}.items():
        if (value := given.get(key, known[0])) not in known:
            read = " or ".join(map(repr, known))
            raise CheckpointError(f"{file} sets {key!r} to {value!r}, and jaxspec only reads {read}")
    enabled = boolean(given, "enable_confidence_head", file)
    if enabled is None:
        alpha = given.get("confidence_head_alpha", 0)
        if not isinstance(alpha, int | float) or isinstance(alpha, bool):
            raise CheckpointError(f"{file} must give a number as 'confidence_head_alpha', and it has {alpha!r}")
        enabled = speculators or alpha > 0
    with_markov = boolean(given, "confidence_head_with_markov", file)
    if enabled and with_markov is None and layout == "DeepSpec":
        raise CheckpointError(f"{file} gives no confidence_head_with_markov, which its own code requires; add it")
    with_markov = speculators if with_markov is None else with_markov
    of_specforge = layout == "SpecForge and SGLang"
    projector = given.get("projector_type", "dspark" if of_specforge else "dflash")
    if projector not in ("dflash", "dspark") or of_specforge != (projector == "dspark"):
        raise CheckpointError(f"{file} sets 'projector_type' to {projector!r}, unlike its other settings")
    plain = layout == "its authors" or given.get("speculators_model_type") == "dflash"
    if plain and (rank or enabled):
        key = "markov_rank" if rank else "enable_confidence_head"
        raise CheckpointError(f"{file} sets {key}, which only DSpark heads have, and its class or type is DFlash's")
    for key, wanted, part in (
        ("markov_rank", rank, "markov_head."),
        ("enable_confidence_head", enabled, "confidence_"),
    ):
        names = [name for name in _OURS.values() if name.startswith(part)]
        held = [name for name in names if name in tensors]
        if bool(wanted) != bool(held):
            which = f"tensor {held[0]} is in the files" if held else f"tensor {names[0]} is missing"
            raise CheckpointError(f"{file} has {key} {wanted}, and {which}; {head_parts.INCOMPLETE}")
    confidence = ("markov" if with_markov else "hidden") if enabled else "none"
    return {"markov_rank": rank, "confidence": confidence}
