"""EAGLE-3 heads in their published layouts, which agree on the tensors, but not on the meaning of settings.

There are two conventions for the tapped layers, and no file names its own: see `_read_taps`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_kinds import LISTED, NORMS, OUTPUTS, classes_of
from jaxspec.convert.head_parts import Files, OwnHead, PublishedHead, Taps, listed_layers, section, tapped_after
from jaxspec.convert.hf_config import boolean
from jaxspec.convert.names import theirs
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Options, official_taps
from jaxspec.host.terminal import say

Layout = Literal["EAGLE's authors", "SpecForge and SGLang", "speculators and vLLM", "DeepSpec"]
_LAYERS, _SECOND_LAYER = ("midlayer", "layers.0"), re.compile(r"layers\.[1-9]")
_LEVELS = 3  # that vLLM drafts per round by default


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    raw = head_kinds.read(source, "eagle3")
    # EAGLE's own code builds one layer, whatever the config gives: some configs repeat the target's number.
    read_as = {"model_type": "llama", "num_hidden_layers": 1, **head_parts.FULL}
    layers = head_parts.layers_config(raw, source)
    model = head_parts.shape_of(layers, raw, source, any_width=True, **read_as)
    width, window = raw.get("target_hidden_size", model.hidden_size), head_parts.windows_of(layers, source)
    read_taps, norms = _read_taps(raw, source, taps), _norms(raw, source)
    found = head_parts.open_head(source, [f"{layer}.self_attn.q_proj.weight" for layer in _LAYERS])
    if more := next(filter(_SECOND_LAYER.match, found), None):
        raise CheckpointError(f"{source} holds {more}, and an EAGLE-3 head that jaxspec reads has one layer")
    qk_norm = any(name.endswith(".self_attn.q_norm.weight") for name in found)
    model = dataclasses.replace(model, tie_embeddings=False, qk_norm=qk_norm)  # it has its own LM head
    if "lm_head.weight" not in found:
        raise CheckpointError(f"tensor lm_head.weight is missing in {source}, and an EAGLE-3 head has an LM head")
    mask = head_parts.read_draft_vocabulary(raw, found, model.vocab_size, source)
    settings = {"draft_vocabulary": mask, "own_embedding": "embed_tokens.weight" in found, **norms}
    if window:
        settings["window"] = window[0]
    if width != model.hidden_size:
        settings["target_width"] = width
        if not settings["own_embedding"]:
            raise CheckpointError(
                f"tensor embed_tokens.weight is missing in {source}: a head of width {model.hidden_size} for a target "
                f"of width {width} needs an embedding of its own"
            )
    elif mask is None:
        settings["own_head"] = True  # unless it proves to be the target's
    layer = next((layer for layer in _LAYERS if any(name.startswith(f"{layer}.") for name in found)), _LAYERS[0])
    layout, target_layers = f"the layout of {_layout_of(raw)}", raw.get("num_target_layers")
    return PublishedHead(
        Eagle3(), "EAGLE-3 head", model.vocab_size, width, settings, _published(layer, norms["tap_norm"]),
        model=model, options=Eagle3Options, layout=layout, taps=read_taps, target_layers=target_layers,
    ).with_tensors(found, source)  # fmt: skip


def files(head: OwnHead, form: str) -> Files:
    """The files of a head for EAGLE's own code and SGLang, for DeepSpec, or for speculators and vLLM.

    See `heads.export`.
    """
    options, layer = Eagle3Options.from_settings(head.config.settings), head_parts.as_llama(head)
    by_rule = form == "eagle3" and options.taps == official_taps(head.with_target()[1].model.num_layers)
    if not by_rule and (disorder := head_parts.disorder(options.taps)):
        raise CheckpointError(f"the head at {head.path} {disorder}")
    if form == "deepspec":
        arrays = head_parts.with_targets(head, "embedding", "head.kernel")
        summary = f"EAGLE-3 head for {head.target}, which drafts every token"
        return Files(_deepspec(head, options, layer), arrays, _published("layers.0", options.tap_norm), summary)
    arrays = head_parts.with_targets(head, "head.kernel")
    # The projects' defaults differ, so every flag is written, but for `norm_output` in EAGLE's own layout: SpecForge
    # read it in two ways, and takes the same default in both.
    values: dict[str, Any] = {
        "norm_before_residual": options.norm_before_residual,
        "norm_before_fc": options.tap_norm == "all",
        "fc_norm": options.tap_norm == "each",
        "draft_vocab_size": arrays["head.kernel"].shape[-1],
        **({} if options.target_width is None else {"target_hidden_size": options.target_width}),
    }
    if form == "speculators":
        layer = head_parts.with_windows(layer, (options.window,)) if options.window else layer
        values |= head_parts.speculators_config(head, layer, _LEVELS, "eagle3")
        values |= {"architectures": ["Eagle3Speculator"], LISTED: list(options.taps)}
        values["norm_output"] = options.returns_normed
        if options.target_width is not None:
            say("warning: speculators refuses heads of another width than their target; vLLM reads them")
    else:
        values = {**head_parts.eagles_rope(layer), **values, **_official(head, options)}
    published = _published("layers.0" if form == "speculators" else "midlayer", options.tap_norm)
    summary = f"EAGLE-3 head for {head.target}, which drafts {values['draft_vocab_size']} tokens"
    return Files(values, arrays, published, summary)


def _deepspec(head: OwnHead, options: Eagle3Options, layer: dict[str, Any]) -> dict[str, Any]:
    """config.json for DeepSpec's code. Raises CheckpointError for what it does not compute."""
    _refuse(
        head,
        "DeepSpec's code",
        (not head.config.model.qk_norm, "does not norm queries and keys"),
        (options.draft_vocabulary is not None, "has a draft vocabulary"),
        (options.target_width is not None, "has another width than its target"),
    )
    return {
        **head_parts.with_windows(layer, ()), "architectures": ["Qwen3Eagle3Model"], "tie_word_embeddings": False,
        "num_target_layers": head.with_target()[1].model.num_layers, OUTPUTS: [tap - 1 for tap in options.taps],
        # Its code needs settings of training too; these are its defaults.
        "ttt_length": 7, "step_loss_decay": 0.8, "draft_num_hidden_layers": 1,
    }  # fmt: skip


def _official(head: OwnHead, options: Eagle3Options) -> dict[str, Any]:
    """The entries of config.json for EAGLE's own code. Raises CheckpointError for what it does not compute."""
    official = official_taps(head.with_target()[1].model.num_layers)
    _refuse(
        head,
        "EAGLE's own code",
        (head.config.model.qk_norm, "norms queries and keys"),
        (len(options.taps) != len(official), f"reads {len(options.taps)} layers of the target and not three"),
    )
    head_parts.warn_of_eagles_layers(head.config.model, qkv_bias=False)
    values: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"]}
    if options.taps != official:
        say(
            f"warning: EAGLE's own code always reads layers {', '.join(map(str, official))}, but this head reads "
            "others; SGLang reads those in the config"
        )
        values["eagle_config"] = {LISTED: [tap - 1 for tap in options.taps]}
    return values


def _refuse(head: OwnHead, whose: str, *checks: tuple[bool, str]) -> None:
    """Raises CheckpointError for the first of `checks` that holds, or what only speculators and vLLM compute."""
    options = Eagle3Options.from_settings(head.config.settings)
    for differs, what in (
        *checks,
        (options.tap_norm != "none", "norms the layers of the target before fc"),
        (options.norm_before_residual, "begins the residual stream with the normed feature"),
        (options.returns_normed, "feeds back the output of its final norm"),
        (options.window > 0, "has a sliding window"),
    ):
        if differs:
            raise CheckpointError(
                f"{whose} does not compute the head at {head.path}, which {what}; use --format speculators"
            )


def _published(layer: str, tap_norm: str) -> Callable[[str], str]:
    """A function from jaxspec's names to published ones: `layer.mlp.up.kernel` → `midlayer.mlp.up_proj.weight`."""

    def published(ours: str) -> str:
        if ours == "fc.kernel":
            return "fc.weight"
        if ours == "feature_norm":
            return f"{layer}.hidden_norm.weight"
        if ours.startswith("tap_norms."):
            return "input_norm.weight" if tap_norm == "all" else ours.replace("tap_norms", "fc_norm") + ".weight"
        whole = theirs(ours.replace("layer.", "layers.0.", 1)).removeprefix("model.")
        return whole.replace("layers.0", layer, 1)

    return published


def _layout_of(raw: Mapping[str, Any]) -> Layout:
    """The project whose layout a config has. SpecForge and SGLang have their own class name, or an `eagle_config`."""
    if head_parts.is_speculators(raw):
        return "speculators and vLLM"
    classes = classes_of(raw)
    if "Qwen3Eagle3Model" in classes:
        return "DeepSpec"
    if "LlamaForCausalLMEagle3" in classes or "eagle_config" in raw:
        return "SpecForge and SGLang"
    return "EAGLE's authors"


def _read_taps(raw: Mapping[str, Any], source: Path, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused; `override` is what the user names.

    Speculators and vLLM list these layers at the top level. SpecForge and SGLang list, in `eagle_config`, the layers
    whose outputs are read, so each number is one less; so does DeepSpec, under another name. Without a list, or with an
    empty one as in Model Optimizer's defaults, EAGLE's own code decides.
    """
    if override is not None:
        return Taps(tuple(override), "as given by --taps", official_taps)
    file = source / "config.json"
    nested = {key: value for key, value in section(raw, "eagle_config", file).items() if value != []}
    places = ((raw, LISTED), (nested, LISTED), (raw, OUTPUTS))
    top, inner, outputs = (listed_layers(values, key, file, ascending=True) for values, key in places)
    if (outputs is not None) != (_layout_of(raw) == "DeepSpec") or (outputs and (top or inner)):
        raise CheckpointError(
            f"{file} must list the layers that the head reads once, as {OUTPUTS} if it is DeepSpec's and otherwise "
            f"as {LISTED}; or name the layers whose inputs it reads with --taps"
        )
    if top and inner:
        raise CheckpointError(
            f"{file} lists {LISTED} twice, at the top and in eagle_config, which mean different things; name "
            "the layers whose inputs the head reads with --taps"
        )
    if top:
        where = f"{LISTED} at the top level of config.json, read as layers whose inputs these are"
        return Taps(top, where, official_taps)
    if outputs or inner:
        return tapped_after(outputs or inner or (), OUTPUTS if outputs else f"{LISTED} in eagle_config", official_taps)
    return Taps(None, "those of EAGLE's own code (2, n/2 and n - 3), since config.json lists none", official_taps)


def _norms(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The settings of `Eagle3Options` about norms.

    `norm_output` means that the output of the norm before the LM head is fed back, as in EAGLE-3.1. SpecForge gave it
    another meaning between its pull requests 568 (May 2026) and 879 (September 2026), and no file tells them apart.
    """
    file = source / "config.json"
    given = {**raw, **section(raw, "eagle_config", file)}
    for name in NORMS:
        boolean(given, name, file)
    if given.get("norm_before_fc") and given.get("fc_norm"):
        raise CheckpointError(f"{file} sets both norm_before_fc and fc_norm, which exclude each other")
    fed_back = bool(given.get("norm_output"))
    if fed_back and not head_parts.is_speculators(raw):
        say(
            f"warning: norm_output of {file} is read as in SGLang, vLLM and SpecForge since its pull request 879: each "
            "level reads the normed output of the level before. If an earlier SpecForge trained this head, remove "
            "norm_output and convert it again"
        )
    return {
        "tap_norm": "all" if given.get("norm_before_fc") else "each" if given.get("fc_norm") else "none",
        "norm_before_residual": bool(given.get("norm_before_residual")),
        "returns_normed": fed_back,
    }
