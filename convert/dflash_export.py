"""A DFlash head → the files that DFlash's own code loads, or that speculators and vLLM load."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.convert import draft_maps, head_parts, hf_config, speculators_format
from jaxspec.convert.dflash import abstract, published
from jaxspec.convert.dflash_config import SECTION
from jaxspec.convert.export import head_arrays, head_config, write_published
from jaxspec.convert.head_keys import INPUTS, OUTPUTS
from jaxspec.drafters.dflash import Dflash, DflashOptions
from jaxspec.host.terminal import say

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
    target = head_parts.target_of(source) if target is None else target
    goal = config_json.read_config(target)
    heads.check_same_shape(source, config.model, goal.model)
    options = DflashOptions.from_settings(config.settings)
    arrays = head_arrays(source, config, abstract(config.model, config.settings))
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
            **speculators_format.common("dflash", layers, goal, target, verifier, options.block - 1),
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
    lm_head = head_parts.lm_head_of(goal)
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
