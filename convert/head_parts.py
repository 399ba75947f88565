"""Shared by the conversions of heads: their configs, tensors that repeat the target's, and their export."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import hf_config
from jaxspec.convert.folders import format_of
from jaxspec.convert.names import is_kernel
from jaxspec.convert.readers import Source, Tensor
from jaxspec.convert.transfer import read_back, write_head
from jaxspec.decoding.drafter import Drafter, HeadShape
from jaxspec.drafters import Dflash, Eagle3
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig


@dataclasses.dataclass(frozen=True)
class Taps:
    """The layers whose inputs a head reads.

    Attributes:
        layers: their numbers from 0; None: those of its authors' code, which depend on the target's number of layers.
        reason: why these layers, as a message for users.
    """

    layers: tuple[int, ...] | None
    reason: str


def one_layer(raw: Mapping[str, Any], source: Path, what: str) -> LlamaConfig:
    """Shape of a head's layer. Like EAGLE's own code, it reads every config as a LLaMA's, whatever the target is.

    Args:
        what: name of the head for the error message, such as `an EAGLE head`.

    Raises:
        CheckpointError: the config has more than one layer, or settings that are not supported.
    """
    refuse_window(raw, source / "config.json")
    model = hf_config.to_llama({**raw, "model_type": "llama", "architectures": None})
    if model.num_layers != 1:
        raise CheckpointError(
            f"{source / 'config.json'} says num_hidden_layers {model.num_layers}, and {what} has one layer"
        )
    return model


def refuse_window(layer: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError if a head's layers use sliding-window attention."""
    window = layer.get("sliding_window")
    if window is not None and layer.get("use_sliding_window") is not False and not layer.get("layer_types"):
        raise CheckpointError(f"{file} asks for sliding-window attention (sliding_window {window}), not supported here")


def listed_layers(values: Mapping[str, Any], key: str, file: Path) -> tuple[int, ...] | None:
    """The layer numbers listed in a config; None without a list. Raises CheckpointError for an invalid list."""
    if (found := values.get(key)) is None:
        return None
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise CheckpointError(f"{file} must list numbers of layers as {key!r}, and it has {found!r}")
    return tuple(found)


def section(values: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    """An object inside a config, without its nulls; an empty one if absent. Raises CheckpointError unless it is one."""
    found = {} if values.get(key) is None else values[key]
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} must have an object as {key!r}, not {found!r}")
    return {name: value for name, value in found.items() if value is not None}


def is_targets(tensor: Tensor, target: Path, name: str) -> bool:
    """Whether a tensor equals a parameter of the target bit for bit, in the tensor's dtype."""
    array = parameters.read_arrays(target / "params", [name])[name]
    with np.errstate(over="ignore"):  # an overflow is a difference
        array = (array.T if is_kernel(name) else array).astype(tensor.dtype, copy=False)
    bits = f"u{array.itemsize}"  # compared as bits, because -0 == 0
    return np.array_equal(tensor.read().view(bits), array.view(bits))


def without_targets(
    tensors: dict[str, Tensor], ours: str, theirs: str | None, dtype: str, target: Path, source: Path
) -> tuple[dict[str, Tensor], bool]:
    """A head's tensors without `ours` if that equals the target's, and whether the head keeps its own.

    Args:
        ours: `embedding`, or `head.kernel`, the LM head.
        theirs: the target's parameter; None: there is none to compare with.
        dtype: the head's dtype. A tensor of another dtype is kept, because export could not restore its dtype.
    """
    if (tensor := tensors.get(ours)) is None:
        return tensors, False
    if theirs is not None and tensor.dtype == dtype and is_targets(tensor, target, theirs):
        return {name: tensor for name, tensor in tensors.items() if name != ours}, False
    what = "an embedding" if ours == "embedding" else "an LM head"
    say(f"{source} has {what} of its own, unlike that of {target}: it is kept with the head")
    return tensors, True


def lm_head_of(target: CheckpointConfig) -> str | None:
    """The target's parameter that is its LM head; None if it is quantised, and so cannot be compared."""
    if target.model.tie_embeddings:
        return "embedding"
    return "head.kernel" if target.quantize is None else None


def target_of(head: Path) -> Path:
    """The checkpoint whose `heads` folder contains a head. Raises CheckpointError if there is none."""
    folder = head.absolute().parent
    if folder.name != "heads" or format_of(folder.parent) != config_json.FORMAT:
        raise CheckpointError(f"{head} is not in a folder CKPT/heads; name its target with --target CKPT")
    return folder.parent


def as_llama(head: HeadConfig, goal: CheckpointConfig) -> CheckpointConfig:
    """A head's layer as a checkpoint: a LLaMA with one layer and the target's special tokens. With norms of queries and
    keys it is a Qwen3."""
    layer, family = dataclasses.replace(head.model, num_layers=1), "qwen3" if head.model.qk_norm else "llama"
    return dataclasses.replace(goal, family=family, model=layer, source_dtype=head.source_dtype)


def eagles_rope(values: dict[str, Any]) -> dict[str, Any]:
    """A config for EAGLE's own code, which only knows `type` and `factor` of rope_scaling.

    Other scalings are left as they are, with a warning that names the projects which can read them.
    """
    if (scaling := values["rope_scaling"]) is None:
        return values
    original = scaling.get("original_max_position_embeddings", values["max_position_embeddings"])
    if scaling["rope_type"] == "llama3" or original != values["max_position_embeddings"]:
        say(
            f"warning: EAGLE's own code does not support this head's rope scaling of type {scaling['rope_type']}, and "
            "rejects the config; SGLang and vLLM read it"
        )
        return values
    return {**values, "rope_scaling": {"type": scaling["rope_type"], "factor": scaling["factor"]}}


def check_depth(said: Any, goal: LlamaConfig, source: Path) -> None:
    """Raises CheckpointError if a config says that the head's target has another number of layers than this one."""
    if said not in (None, goal.num_layers):
        raise CheckpointError(
            f"the head at {source} was trained for a target of {said} layers, and this target has {goal.num_layers}"
        )


def count_taps(found: Source, taps: Taps, otherwise: int, width: int, source: Path) -> int:
    """Number of target layers that the head reads. Raises CheckpointError if its fc does not fit this number.

    Args:
        otherwise: the number if the config lists no layers.
        width: the target's hidden size.
    """
    count, fc = len(taps.layers or range(otherwise)), found.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and (reads := fc.shape[1] // width) != count:
        raise CheckpointError(
            f"fc.weight in {source} reads {reads} layers of the target, and {count} are named: {taps.reason}; name "
            "them with --taps"
        )
    return count


def write_fused(
    drafter: Drafter,
    kind: str,
    config: heads.HeadConfig,
    tensors: dict[str, Tensor],
    source: Path,
    out: Path,
    goal: LlamaConfig,
    dtype: str | None,
    said: Sequence[str],
) -> heads.HeadConfig:
    """Writes a head that was read, after it was checked against its target, and returns its config.

    Args:
        kind: what it is called, such as `DFlash head`.
        config: its settings have its `taps`.
        goal: the target's shape.
        said: its layout, and why its taps are those.

    Raises:
        CheckpointError: the head does not fit the target.
    """
    try:
        drafter.check_head(HeadShape(config.model, config.settings), goal)
    except ValueError as error:
        raise CheckpointError(f"the head at {source} {error}") from error
    layout, reason = said
    say(f"{source} has {layout}")
    say(f"it reads the inputs of layers {', '.join(map(str, config.settings['taps']))} (from 0): {reason}")
    write_head(source, out, config, tensors, dtype, kind)
    return config


_VERSION = "0.9.0"
"""The version of speculators whose format is written."""


def speculators_config(
    kind: str, layers: dict[str, Any], goal: CheckpointConfig, target: Path, verifier: str | None, drafted: int
) -> dict[str, Any]:
    """The common entries: kind, version, layers, target, and number of drafted tokens.

    Args:
        kind: the kind of head, in speculators' terms.
        layers: the config.json of the head's layers as a model.
        goal: config of the target.
        target: folder of the target.
        verifier: the target's name in the config, a hub id or a folder; None: the target's folder, with a message.
        drafted: default number of tokens that vLLM drafts per round.
    """
    if verifier is None:
        verifier = target.resolve().name
        say(f"the target is called {verifier} there; --verifier gives the id or folder that vLLM loads")
    return {
        "speculators_model_type": kind,
        "speculators_version": _VERSION,
        "torch_dtype": layers["torch_dtype"],
        "transformer_layer_config": {key: value for key, value in layers.items() if key != "architectures"},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": [hf_config.ARCHITECTURES[goal.family]]},
        },
    }


def head_config(source: Path, drafter: str, formats: str | None = None) -> heads.HeadConfig:
    """Reads the config of a head to export. Raises CheckpointError if it is a checkpoint, or for another drafter.

    Args:
        formats: the formats of such heads, for error messages; None: the drafter's name.
    """
    if format_of(source) == config_json.FORMAT:
        raise CheckpointError(
            f"{source} is a checkpoint, which --format hf writes; --format {formats or drafter} takes a head"
        )
    config = heads.read_head(source, drafter)
    if drafter not in (Dflash.name, Eagle3.name) and config.settings.get("draft_vocabulary") is not None:
        raise CheckpointError(
            f"the head at {source} was cut to a draft vocabulary, which the format cannot store; export the head that "
            "it was cut from"
        )
    return config


def head_arrays(source: Path, config: heads.HeadConfig, abstract: nnx.Module) -> dict[str, np.ndarray]:
    """All parameters of a head, for export. Raises CheckpointError if they do not fit `abstract`."""
    return read_back(source, parameters.read_shapes(source / "params", abstract), config)
