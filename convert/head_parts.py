"""What the conversions of EAGLE heads share: tensor names without prefixes, and tensors that repeat the target's."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import hf_config
from jaxspec.convert.names import IGNORED, is_kernel
from jaxspec.convert.readers import Source, Tensor, format_of
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig


@dataclasses.dataclass(frozen=True)
class Taps:
    """The layers whose inputs a head reads.

    Attributes:
        layers: their numbers from 0; None: those of its authors' code, which depend on how many layers the target has.
        reason: why these, to be told to the user.
    """

    layers: tuple[int, ...] | None
    reason: str


def unprefixed(tensors: Source, source: Path, known: Collection[str]) -> dict[str, Tensor]:
    """The head's tensors without the prefix that some tools put before their names, such as `model.`.

    Args:
        known: names of which the head has one; what stands before it in the files is the prefix.
    """
    ends = tuple(f".{name}" for name in known)
    whole = next((name for name in tensors if name.endswith(ends) and name not in known), "")
    prefix = next((whole.removesuffix(name) for name in known if whole.endswith(f".{name}")), "")
    found = {}
    for name, tensor in tensors.items():
        if IGNORED.fullmatch(name):
            continue
        if (bare := name.removeprefix(prefix)) in found:
            raise CheckpointError(f"tensor {bare} is twice in {source}, with and without the prefix {prefix}")
        found[bare] = tensor
    return found


def one_layer(raw: Mapping[str, Any], source: Path, what: str) -> LlamaConfig:
    """Shape of a head's layer. Like EAGLE's own code, it reads every config as a LLaMA's, whatever the target is.

    Args:
        what: the head, as the error names it where the config says more layers: `an EAGLE head`.
    """
    model = hf_config.to_llama({**raw, "model_type": "llama", "architectures": None})
    if model.num_layers != 1:
        raise CheckpointError(
            f"{source / 'config.json'} says num_hidden_layers {model.num_layers}, and {what} has one layer"
        )
    return model


def refuse_window(layer: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError where a head's layers attend in a sliding window."""
    window = layer.get("sliding_window")
    if window is not None and layer.get("use_sliding_window") is not False and not layer.get("layer_types"):
        raise CheckpointError(f"{file} asks for sliding-window attention (sliding_window {window}), which is not read")


def listed_layers(values: Mapping[str, Any], key: str, file: Path) -> tuple[int, ...] | None:
    """Numbers of layers that a config lists; None where it lists none."""
    if (found := values.get(key)) is None:
        return None
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise CheckpointError(f"{file} must list numbers of layers as {key!r}, and it has {found!r}")
    return tuple(found)


def section(values: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    """An object inside a config; absent: an empty one."""
    if not isinstance(found := values.get(key) or {}, dict):
        raise CheckpointError(f"{file} must have an object as {key!r}, not {found!r}")
    return found


def is_targets(tensor: Tensor, target: Path, name: str) -> bool:
    """Whether a tensor has the bits that a parameter of the target has in the tensor's dtype."""
    array = parameters.read_arrays(target / "params", [name])[name]
    with np.errstate(over="ignore"):  # what overflows differs, and that is the answer
        array = (array.T if is_kernel(name) else array).astype(tensor.dtype, copy=False)
    bits = f"u{array.itemsize}"  # as numbers, -0 would equal 0
    return np.array_equal(tensor.read().view(bits), array.view(bits))


def without_targets(
    tensors: dict[str, Tensor], ours: str, theirs: str | None, dtype: str, target: Path, source: Path
) -> tuple[dict[str, Tensor], bool]:
    """A head's tensors without `ours` where that repeats a parameter of the target, and whether it has one of its own.

    Args:
        ours: `embedding`, or `head.kernel`, the LM head.
        theirs: the target's parameter; None: there is none to compare with.
        dtype: the head's. A tensor in another one is kept, since export could not know that dtype.
    """
    if (tensor := tensors.get(ours)) is None:
        return tensors, False
    if theirs is not None and tensor.dtype == dtype and is_targets(tensor, target, theirs):
        return {name: tensor for name, tensor in tensors.items() if name != ours}, False
    what = "an embedding" if ours == "embedding" else "an LM head"
    say(f"{source} has {what} of its own, unlike that of {target}: it is kept with the head")
    return tensors, True


def lm_head_of(target: CheckpointConfig) -> str | None:
    """The parameter of a target that is its LM head; None where that is quantised, and can be compared with nothing."""
    if target.model.tie_embeddings:
        return "embedding"
    return "head.kernel" if target.quantize is None else None


def target_of(head: Path) -> Path:
    """The checkpoint under whose `heads` a head lies. Raises CheckpointError if it lies elsewhere."""
    folder = head.absolute().parent
    if folder.name != "heads" or format_of(folder.parent) != config_json.FORMAT:
        raise CheckpointError(f"{head} does not lie under CKPT/heads; name its target with --target CKPT")
    return folder.parent


def as_llama(head: HeadConfig, goal: CheckpointConfig) -> CheckpointConfig:
    """What a head's layer would be as a checkpoint of its own: a LLaMA of one layer, with the target's tokens; a Qwen3
    where queries and keys have norms."""
    layer, family = dataclasses.replace(head.model, num_layers=1), "qwen3" if head.model.qk_norm else "llama"
    return dataclasses.replace(goal, family=family, model=layer, source_dtype=head.source_dtype)


def eagles_rope(values: dict[str, Any]) -> dict[str, Any]:
    """A config as EAGLE's own code reads it, which knows of rope_scaling nothing but `type` and `factor`.

    What these two cannot say is left as it is, and a warning says what reads it.
    """
    if (scaling := values["rope_scaling"]) is None:
        return values
    original = scaling.get("original_max_position_embeddings", values["max_position_embeddings"])
    if scaling["rope_type"] == "llama3" or original != values["max_position_embeddings"]:
        say(
            f"warning: EAGLE's own code has no words for rope scaling of type {scaling['rope_type']} as this head has "
            "it, and refuses the config; SGLang and vLLM read it"
        )
        return values
    return {**values, "rope_scaling": {"type": scaling["rope_type"], "factor": scaling["factor"]}}
