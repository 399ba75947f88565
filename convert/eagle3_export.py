"""Export of an EAGLE-3 head for EAGLE's own code and SGLang, or for speculators and vLLM."""

from pathlib import Path
from typing import Any, Literal

from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import draft_maps, head_parts, hf_config, speculators_format
from jaxspec.convert.eagle3 import names
from jaxspec.convert.export import head_arrays, head_config, write_published
from jaxspec.convert.head_keys import LISTED
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Options, official_taps
from jaxspec.host.terminal import say

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
    target = head_parts.target_of(source) if target is None else target
    goal = config_json.read_config(target)
    heads.check_same_shape(source, config.model, goal.model)
    options = Eagle3Options.from_settings(config.settings)
    layer = hf_config.from_checkpoint(head_parts.as_llama(config, goal))
    if form == "speculators":
        _check_final_norm(source, options)
        common = speculators_format.common("eagle3", layer, goal, target, verifier, _LEVELS)
        values = {**common, **_speculators(options)}
    else:
        if config.model.qk_norm:
            raise _refusal(source, "norms queries and keys")
        values = _official(source, options, head_parts.eagles_rope(layer), goal)
    shape = HeadShape(config.model, config.settings)
    arrays = head_arrays(source, config, nnx.eval_shape(lambda: Eagle3().build_head(shape, nnx.Rngs(0))))
    drafted = arrays["head.kernel"].shape[-1]
    maps = draft_maps.write(options.draft_vocabulary, config.model.vocab_size)
    named = names("layers.0" if form == "speculators" else "midlayer", options.tap_norm)
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
