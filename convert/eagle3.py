"""EAGLE-3 heads in their published layouts, which agree on the tensors, but not on the meaning of settings.

There are two conventions for the tapped layers, and no file names its own: see `_read_taps`.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import head_kinds, head_parts
from jaxspec.convert.head_kinds import LISTED, NORMS, OUTPUTS
from jaxspec.convert.head_parts import Files, OwnHead, PublishedConfig, PublishedHead, Taps, Unsupported
from jaxspec.convert.hf_config import boolean
from jaxspec.convert.names import theirs
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Options, official_taps
from jaxspec.host.terminal import say

_LAYERS, _SECOND_LAYER = ("midlayer", "layers.0"), re.compile(r"layers\.[1-9]")
_LEVELS = 3  # that vLLM drafts per round by default


def plan(source: Path, taps: Sequence[int] | None = None) -> PublishedHead:
    """Reads config and headers of a published head; see `heads.plan`."""
    config = head_kinds.read(source, "eagle3")
    # EAGLE's own code builds one layer, whatever the config gives: some configs repeat the target's number.
    read_as = {"model_type": "llama", "num_hidden_layers": 1, **head_parts.FULL}
    model, windows = head_parts.shape_of(config, config.layers, any_width=True, **read_as)
    width = config.raw.get("target_hidden_size", model.hidden_size)
    read_taps, norms = _read_taps(config, taps), _norms(config)
    tensors = head_parts.open_head(source, [f"{layer}.self_attn.q_proj.weight" for layer in _LAYERS])
    if more := next(filter(_SECOND_LAYER.match, tensors), None):
        raise CheckpointError(f"{source} holds {more}, and an EAGLE-3 head that jaxspec reads has one layer")
    if config.layout == "its authors":
        head_parts.warn_of_theta(model, config.file)
    qk_norm = any(name.endswith(".self_attn.q_norm.weight") for name in tensors)
    model = dataclasses.replace(model, tie_embeddings=False, qk_norm=qk_norm)  # it has its own LM head
    mask = head_parts.read_draft_vocabulary(config, tensors, model.vocab_size)
    settings = {"draft_vocabulary": mask, "own_embedding": "embed_tokens.weight" in tensors, **norms}
    if windows:
        if not config.is_speculators:
            raise CheckpointError(
                f"{config.file} has layer_types 'sliding_attention', whose window only speculators and vLLM compute; "
                "write 'full_attention' if another project trained this head"
            )
        settings["window"] = windows[0]
    if width != model.hidden_size:
        settings["target_width"] = width
        if not settings["own_embedding"]:
            raise CheckpointError(
                f"tensor embed_tokens.weight is missing in {source}, which a head of width {model.hidden_size} for a "
                f"target of width {width} needs"
            )
    elif mask is None:
        settings["own_head"] = "lm_head.weight" in tensors  # unless it proves to be the target's
        if not settings["own_head"]:
            say(f"warning: {source} has no lm_head.weight, so the target's LM head is read, as in SGLang and vLLM")
    layer = next((layer for layer in _LAYERS if any(name.startswith(f"{layer}.") for name in tensors)), _LAYERS[0])
    return PublishedHead(
        config, Eagle3(), "EAGLE-3 head", model.vocab_size, width, settings, _published(layer, norms["tap_norm"]),
        model=model, options=Eagle3Options, taps=read_taps,
    ).with_tensors(tensors)  # fmt: skip


def unsupported(head: OwnHead) -> Unsupported:
    """What each format does not support; see `heads.export`."""
    options, qk_norm = Eagle3Options.from_settings(head.config.settings), head.config.model.qk_norm
    official = official_taps(head.with_target()[1].model.num_layers)
    out_of_order, layers = head_parts.disorder(options.taps)
    by_speculators = (
        (options.tap_norm != "none", "norms the layers of the target before fc"),
        (options.norm_before_residual, "begins the residual stream with the normed feature"),
        (options.returns_normed, "feeds back the output of its final norm"),
        (options.window > 0, "has a sliding window"),
    )
    return {
        "eagle3": (
            (qk_norm, "norms queries and keys"),
            (len(options.taps) != len(official), f"reads {len(options.taps)} layers of the target and not three"),
            (out_of_order and options.taps != official, layers),
            *by_speculators,
        ),
        "deepspec": (
            (not qk_norm, "does not norm queries and keys"),
            (options.draft_vocabulary is not None, "has a draft vocabulary"),
            (options.target_width is not None, "has another width than its target"),
            (out_of_order, layers),
            *by_speculators,
        ),
        "speculators": ((out_of_order, layers),),
    }


def files(head: OwnHead, form: str) -> Files:
    """The files of a head for EAGLE's own code and SGLang, for DeepSpec, or for speculators and vLLM."""
    options = Eagle3Options.from_settings(head.config.settings)
    layer = head_parts.as_eagles(head, qkv_bias=False) if form == "eagle3" else head_parts.as_llama(head)
    arrays = head_parts.with_targets(head, *(("embedding",) if form == "deepspec" else ()), "head.kernel")
    drafted, target_layers = arrays["head.kernel"].shape[-1], head.with_target()[1].model.num_layers
    # The projects' defaults differ, so every flag is written, but for `norm_output` in EAGLE's own layout: SpecForge
    # read it in two ways, and takes the same default in both.
    flags = {
        "norm_before_residual": options.norm_before_residual,
        "norm_before_fc": options.tap_norm == "all",
        "fc_norm": options.tap_norm == "each",
        "draft_vocab_size": drafted,
        **({} if options.target_width is None else {"target_hidden_size": options.target_width}),
    }
    if form == "deepspec":
        values = {
            **head_parts.with_windows(layer, ()), "architectures": ["Qwen3Eagle3Model"], "tie_word_embeddings": False,
            "num_target_layers": target_layers, OUTPUTS: [tap - 1 for tap in options.taps],
            # Its code needs settings of training too; these are its defaults.
            "ttt_length": 7, "step_loss_decay": 0.8, "draft_num_hidden_layers": 1,
        }  # fmt: skip
    elif form == "speculators":
        layer = head_parts.with_windows(layer, (options.window,)) if options.window else layer
        values = {
            **flags,
            **head_parts.speculators_config(head, layer, _LEVELS, "eagle3"),
            "architectures": ["Eagle3Speculator"],
            LISTED: list(options.taps),
            "norm_output": options.returns_normed,
        }
        if options.target_width is not None:
            say("warning: speculators refuses heads of another width than their target; vLLM reads them")
    else:
        values = {**layer, **flags, "architectures": ["LlamaForCausalLMEagle3"]}
        if options.taps != (official := official_taps(target_layers)):
            say(
                f"warning: EAGLE's own code always reads layers {', '.join(map(str, official))}, but this head reads "
                "others; SGLang reads those in the config"
            )
            values["eagle_config"] = {LISTED: [tap - 1 for tap in options.taps]}
    published = _published("midlayer" if form == "eagle3" else "layers.0", options.tap_norm)
    return Files(values, arrays, published, f"EAGLE-3 head for {head.target}, which drafts {drafted} tokens")


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


def _read_taps(config: PublishedConfig, override: Sequence[int] | None) -> Taps:
    """The layers whose inputs are fused; `override` is what the user names."""
    # Speculators and vLLM list these layers at the top level. SpecForge and SGLang list, in `eagle_config`, the layers
    # whose outputs are read, so each number is one less; so does DeepSpec, under another name. Without a list, or with
    # an empty one as in Model Optimizer's defaults, EAGLE's own code decides.
    if override is not None:
        return Taps(tuple(override), "as given by --taps")
    nested = {
        key: value for key, value in head_parts.section(config.raw, "eagle_config", config.file).items() if value != []
    }
    places = ((config.raw, LISTED), (nested, LISTED), (config.raw, OUTPUTS))
    top, inner, outputs = (head_parts.listed_layers(values, key, config.file, ascending=True) for values, key in places)
    if (outputs is not None) != (config.layout == "DeepSpec") or (outputs and (top or inner)):
        raise CheckpointError(
            f"{config.file} must list layers once, as {OUTPUTS} if it is DeepSpec's, else as {LISTED}; or use --taps"
        )
    if top and inner:
        raise CheckpointError(f"{config.file} lists {LISTED} twice, with two meanings; name the layers with --taps")
    if top:
        return Taps(top, f"{LISTED} at the top level of config.json, read as layers whose inputs these are")
    if outputs or inner:
        return head_parts.tapped_after(outputs or inner or (), OUTPUTS if outputs else f"{LISTED} in eagle_config")
    return Taps(official_taps, "those of EAGLE's own code (2, n/2, n - 3, or nearest), since config.json lists none")


def _norms(config: PublishedConfig) -> dict[str, Any]:
    """The settings of `Eagle3Options` about norms."""
    # `norm_output` means that the output of the norm before the LM head is fed back, as in EAGLE-3.1. SpecForge gave it
    # another meaning between its pull requests 568 (May 2026) and 879 (September 2026), and no file shows which.
    given = {name: bool(boolean(config.given, name, config.file)) for name in NORMS}
    if given["norm_before_fc"] and given["fc_norm"]:
        raise CheckpointError(f"{config.file} sets both norm_before_fc and fc_norm, which exclude each other")
    if given["norm_output"] and not config.is_speculators:
        say(
            f"warning: norm_output of {config.file} is read as in SGLang, vLLM and SpecForge since its pull request "
            "879: each level reads the normed output of the level before. If an earlier SpecForge trained this head, "
            "remove norm_output and convert it again"
        )
    return {
        "tap_norm": "all" if given["norm_before_fc"] else "each" if given["fc_norm"] else "none",
        "norm_before_residual": given["norm_before_residual"],
        "returns_normed": given["norm_output"],
    }
