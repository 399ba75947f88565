"""Shared by the kinds of published heads: layers, taps, draft vocabulary, and the format of speculators and vLLM."""

import dataclasses
import re
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import hf_config
from jaxspec.convert.folders import MODEL_FILES
from jaxspec.convert.hf_config import integer
from jaxspec.convert.names import unprefixed
from jaxspec.convert.readers import Source, Tensor, check_dtypes, open_directory
from jaxspec.convert.transfer import match
from jaxspec.decoding.drafter import Drafter, HeadShape
from jaxspec.drafters import draft_vocabulary
from jaxspec.drafters.dflash import DflashOptions
from jaxspec.drafters.eagle3 import Eagle3Options
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig

# The two tensors that define a draft vocabulary. `d2t` [Vd] int64 holds offsets: column j of the LM head stands for
# token j + d2t[j]. `t2d` [V] bool is true for target tokens in the draft vocabulary; some files hold 0 and 1 instead.
DRAFT_MAPS = ("d2t", "t2d")
_LAYER = re.compile(r"layers\.(\d+)\.")
_SPECULATORS_VERSION = "0.9.0"  # of the format that is written


@dataclasses.dataclass(frozen=True)
class Taps:
    """The target layers whose inputs a head reads."""

    layers: tuple[int, ...] | None  # from 0; None: those of its authors' code
    reason: str  # why these layers, as a message for users
    default: Callable[[int], tuple[int, ...]]  # those of its authors' code, from the target's number of layers

    def of(self, target_layers: int) -> tuple[int, ...]:
        """The layers in a target of `target_layers` layers."""
        return self.default(target_layers) if self.layers is None else self.layers


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head, whose config and tensors' headers fit each other."""

    drafter: Drafter
    title: str  # its kind, such as `EAGLE-3 head`
    vocab_size: int  # of its target, as is hidden_size
    hidden_size: int
    settings: dict[str, Any]  # of the drafter, without the taps
    published: Callable[[str], str]  # maps a jaxspec name to the name in the files
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # by jaxspec's names
    model: LlamaConfig | None = None  # shape of its decoder layers, if it has any
    layout: str | None = None  # the project whose layout the files have, for messages
    taps: Taps | None = None  # None: it reads no layers of the target
    target_layers: int | None = None  # number of layers of its target, if the config gives it
    options: type[DflashOptions] | type[Eagle3Options] | None = None  # the type of its settings, if it has one
    lm_head: Tensor | None = None  # the target's, which an older variant of EAGLE's files contains

    def with_tensors(self, found: Source, source: Path) -> "PublishedHead":
        """The head with its tensors. Raises CheckpointError where they do not fit its config."""
        settings = self.settings
        if self.taps is not None:
            count, fc = len(self.taps.of(1)), found.get("fc.weight")
            wide = fc is not None and len(fc.shape) == 2 and fc.shape[1] >= fc.shape[0]  # else `match` reports it
            if fc is not None and wide and (reads := fc.shape[1] // self.hidden_size) != count:
                raise CheckpointError(
                    f"fc.weight in {source} reads {reads} layers of the target, and {count} are named: "
                    f"{self.taps.reason}; name them with --taps"
                )
            settings = {**settings, "taps": [0] * count}
        assert self.model is not None
        held = {int(one[1]) for name in found if (one := _LAYER.match(name))}
        if held and max(held) + 1 < self.model.num_layers:  # before so many layers are built
            raise CheckpointError(
                f"{source / 'config.json'} has num_hidden_layers {self.model.num_layers}, and the files hold "
                f"{max(held) + 1}; they are incomplete, or their config is another head's"
            )
        shape = HeadShape(self.model, settings)
        try:
            abstract = nnx.eval_shape(lambda: self.drafter.build_head(shape, nnx.Rngs(0)))
        except ValueError as error:
            raise CheckpointError(f"{source / 'config.json'}: {error}") from error
        return dataclasses.replace(self, tensors=match(abstract, found, self.published, str(source)))


@dataclasses.dataclass(frozen=True)
class OwnHead:
    """A head of jaxspec's, to be exported."""

    path: Path
    config: HeadConfig
    arrays: dict[str, np.ndarray]  # parameters by name, in the source's dtype
    target: Path | None  # folder of its target, and `goal` its config; None where the format does not need it
    goal: CheckpointConfig | None
    verifier: str | None  # the target's name in a `speculators` config; None: the target's folder

    def with_target(self) -> tuple[Path, CheckpointConfig]:
        """Folder and config of the target, in formats that need it."""
        assert self.target is not None and self.goal is not None
        return self.target, self.goal


@dataclasses.dataclass(frozen=True)
class Files:
    """What is written for a head."""

    config: dict[str, Any]  # config.json
    arrays: Mapping[str, np.ndarray]  # by jaxspec's names
    published: Callable[[str], str]  # maps a jaxspec name to the name in the files
    summary: str  # for the message that it was written
    name: str = "model.safetensors"


def is_speculators(raw: Mapping[str, Any]) -> bool:
    """Whether a config has the layout of speculators and vLLM."""
    return not raw.keys().isdisjoint(("speculators_model_type", "speculators_config", "transformer_layer_config"))


def layers_config(raw: Mapping[str, Any], source: Path) -> Mapping[str, Any]:
    """The part of a config that describes the head's layers. Raises CheckpointError if it is missing."""
    layers = raw.get("transformer_layer_config") if is_speculators(raw) else raw
    if not isinstance(layers, dict):
        raise CheckpointError(f"{source / 'config.json'} must describe the head's layers in 'transformer_layer_config'")
    return layers


def shape_of(
    layers: Mapping[str, Any],
    raw: Mapping[str, Any],
    source: Path,
    *,
    any_width: bool = False,
    **read_as: Any,
) -> LlamaConfig:
    """Shape of the layers that `layers`, a part of the config `raw`, describes.

    Args:
        any_width: whether it may differ from the target's width.
        read_as: settings that have these values whatever the target is, such as `model_type`.
    """
    file = source / "config.json"
    windows_of(layers, source)
    shape = hf_config.to_llama({**layers, "architectures": None, **read_as})
    width = integer(raw, "target_hidden_size", str(file), shape.hidden_size)
    if width != shape.hidden_size and not any_width:
        raise CheckpointError(
            f"{file} has target_hidden_size {width} and hidden_size {shape.hidden_size}; jaxspec only supports such "
            "heads that are as wide as their target"
        )
    return shape


def windows_of(layers: Mapping[str, Any], source: Path) -> tuple[int, ...]:
    """The sliding window of each of a head's layers, 0 for a layer without one; empty if none has one.

    Raises CheckpointError where the config does not give them, or contradicts itself.
    """
    file, types, window = source / "config.json", layers.get("layer_types"), layers.get("sliding_window")
    if not types:
        if window is not None and layers.get("use_sliding_window") is not False:
            raise CheckpointError(
                f"{file} sets sliding-window attention (sliding_window {window}) and no layer_types, so the layers "
                "that it is for are not known; add layer_types"
            )
        return ()
    known = {"full_attention": False, "sliding_attention": True}
    if other := [each for each in types if str(each) not in known] if isinstance(types, list) else [types]:
        raise CheckpointError(f"layer_types {other[0]!r} in {file} is not supported")
    if not any(known[each] for each in types):
        return ()
    if layers.get("use_sliding_window") is False:
        raise CheckpointError(f"{file} has layer_types 'sliding_attention', and use_sliding_window false")
    if window is None:
        raise CheckpointError(f"{file} has layer_types 'sliding_attention', and no sliding_window")
    size = integer(layers, "sliding_window", str(file))
    if len(types) != layers.get("num_hidden_layers"):
        raise CheckpointError(
            f"{file} has layer_types for {len(types)} layers, and num_hidden_layers {layers.get('num_hidden_layers')}"
        )
    return tuple(size * known[each] for each in types)


def with_windows(layers: dict[str, Any], windows: Sequence[int]) -> dict[str, Any]:
    """A config of layers, with these sliding windows; the inverse of `windows_of`."""
    size = max(windows, default=0)
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    full = ["full_attention"] * layers["num_hidden_layers"]
    return {
        **layers, "use_sliding_window": size > 0, "sliding_window": size or None, "layer_types": types or full,
    }  # fmt: skip


FULL = {"layer_types": None, "sliding_window": None, "use_sliding_window": None}
"""Settings of layers without windows, for `hf_config`, which reads the others."""


def open_head(source: Path, known: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a head, floats apart from `DRAFT_MAPS`; `known` is as in `unprefixed`."""
    if all((source / name).exists() for name in MODEL_FILES):
        say(f"warning: {source} holds both {' and '.join(MODEL_FILES)}; only the first is read")
    found = unprefixed(open_directory(source), source, known)
    check_dtypes({name: tensor for name, tensor in found.items() if name not in DRAFT_MAPS})
    return found


def listed_layers(values: Mapping[str, Any], key: str, file: Path, ascending: bool = False) -> tuple[int, ...] | None:
    """The layer numbers listed in a config; None without a list.

    Raises CheckpointError for an invalid list, or, if it has to be `ascending`, one that is not.
    """
    if (found := values.get(key)) is None:
        return None
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise CheckpointError(f"{file} must list numbers of layers as {key!r}, and it has {reprlib.repr(found)}")
    if ascending and found != sorted(set(found)):
        raise CheckpointError(
            f"{file} lists {reprlib.repr(found)} as {key!r}, and the code that reads it takes layers in ascending "
            "order; name the layers in the order of the head's training with --taps"
        )
    return tuple(found)


def disorder(taps: Sequence[int]) -> str:
    """Why layers in this order cannot be listed where `listed_layers` has to be ascending; empty if they can."""
    listed = ", ".join(map(str, taps))
    ordered = list(taps) == sorted(set(taps))
    return "" if ordered else f"reads the layers {listed} in this order, where the format has ascending ones"


def section(values: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    """An object inside a config, without its nulls; an empty one if absent. Raises CheckpointError unless it is one."""
    found = {} if values.get(key) is None else values[key]
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} must have an object as {key!r}, not {found!r}")
    return {name: value for name, value in found.items() if value is not None}


def read_draft_vocabulary(
    raw: Mapping[str, Any], found: dict[str, Tensor], vocab_size: int, source: Path
) -> str | None:
    """The mask of a head's draft vocabulary, as in `draft_vocabulary`; None for the whole vocabulary.

    `d2t` and `t2d` are removed from `found`, the head's tensors. Raises CheckpointError where they are not valid.
    """
    maps = {name: found.pop(name) for name in DRAFT_MAPS if name in found}
    lm_head, given = found.get("lm_head.weight"), raw.get("draft_vocab_size")
    if lm_head is not None and len(lm_head.shape) != 2:
        raise CheckpointError(f"lm_head.weight in {source} has shape {list(lm_head.shape)}, and must be a matrix")
    drafted = vocab_size if lm_head is None else lm_head.shape[0]
    if given not in (None, drafted):
        held = "tensor lm_head.weight is missing" if lm_head is None else f"lm_head.weight has {drafted} rows"
        raise CheckpointError(
            f"{source / 'config.json'} has draft_vocab_size {given}, and {held}; the files are incomplete, or their "
            "config is another head's"
        )
    if drafted > vocab_size:
        raise CheckpointError(
            f"lm_head.weight in {source} has {drafted} rows, but the target has only {vocab_size} tokens"
        )
    if "d2t" not in maps:
        if drafted < vocab_size or maps:
            raise CheckpointError(
                f"tensor d2t is missing in {source}; without it, the {drafted} of {vocab_size} tokens of "
                "lm_head.weight are not known; the files are incomplete"
            )
        return None
    offsets = _read_map(maps["d2t"], "iu", "whole numbers", drafted)
    inside = _read_map(maps["t2d"], "biu", "truth values", vocab_size) if "t2d" in maps else None
    if inside is not None:
        if inside.min() < 0 or inside.max() > 1:
            raise CheckpointError(f"t2d in {source} must hold truth values, and its numbers are not all 0 or 1")
        inside = inside.astype(bool)
    if drafted == vocab_size and inside is not None and not inside.any():
        say(f"warning: t2d in {source} was never filled and is ignored, since the head drafts the whole vocabulary")
        inside = None
    if drafted < vocab_size and not offsets.any() and (inside is None or inside.all()):
        raise CheckpointError(
            f"d2t in {source} is 0 everywhere, so it was never filled; use d2t and t2d of the head's training"
        )
    ids = offsets.astype(np.int64) + np.arange(drafted)
    if (np.diff(ids) <= 0).any():
        raise CheckpointError(f"d2t in {source} gives ids that do not ascend, so it does not hold offsets")
    try:
        mask = draft_vocabulary.to_mask(ids.tolist(), vocab_size)
    except ValueError as error:
        raise CheckpointError(f"d2t in {source}: {error}") from error
    if inside is not None and not np.array_equal(np.flatnonzero(inside), ids):
        raise CheckpointError(
            f"d2t and t2d in {source} name different tokens ({len(ids)} and {inside.sum()}); one of them belongs to "
            "another head, or d2t holds ids instead of offsets"
        )
    return mask


def _read_map(tensor: Tensor, kinds: str, words: str, size: int) -> np.ndarray:
    if tensor.shape != (size,):
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has shape {list(tensor.shape)}, and must have [{size}]"
        )
    whole = re.fullmatch(r"bool|u?int\d+|[iu]\d+", tensor.dtype.lower())
    if not whole or (array := tensor.read()).dtype.kind not in kinds:
        raise CheckpointError(
            f"tensor {tensor.name} in {tensor.file} has dtype {tensor.dtype}, and must hold {words}; if it was cast "
            "along with the weights, take the files from before that"
        )
    return array


def draft_maps(mask: str | None, vocab_size: int) -> dict[str, np.ndarray]:
    """`d2t` and `t2d` of a mask; none if a head can draft every token."""
    if mask is None:
        return {}
    ids = draft_vocabulary.ids_of(mask, vocab_size).astype(np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(vocab_size), ids)}


def with_targets(head: OwnHead, *names: Literal["embedding", "head.kernel"]) -> dict[str, np.ndarray]:
    """The arrays of a head, with the target's embedding or LM head, as named, where it has none of its own."""
    target, goal = head.with_target()
    both = {"embedding": "embedding", "head.kernel": lm_head_of(goal)}
    wanted = {ours: both[ours] for ours in names if ours not in head.arrays}
    if None in wanted.values():
        raise CheckpointError(
            f"{target} holds {goal.quantize} weights, and the format repeats the LM head in floats; name a "
            "checkpoint that was converted without --quantize"
        )
    found = parameters.read_arrays(target / "params", set(wanted.values())) if wanted else {}
    turned = lambda ours, name: found[name].T if ours == "head.kernel" and name == "embedding" else found[name]
    targets = {ours: turned(ours, name).astype(head.config.source_dtype) for ours, name in wanted.items()}
    return {**head.arrays, **targets}


def lm_head_of(target: CheckpointConfig) -> str | None:
    """The target's parameter that is its LM head; None if it is quantised, and so cannot be compared."""
    if target.model.tie_embeddings:
        return "embedding"
    return "head.kernel" if target.quantize is None else None


def as_llama(head: OwnHead) -> dict[str, Any]:
    """The config.json of a head's layers as a LLaMA or, with norms of queries and keys, as a Qwen3."""
    (_, goal), config = head.with_target(), head.config
    if config.model.qk_norm and config.model.mlp_bias:
        raise CheckpointError(
            "this head norms queries and keys and has biases of the MLP, which no other project reads together: "
            "neither a LLaMA's nor a Qwen3's config.json has both"
        )
    family = "qwen3" if config.model.qk_norm else "llama"
    return hf_config.from_checkpoint(
        dataclasses.replace(goal, family=family, model=config.model, source_dtype=config.source_dtype)
    )


def warn_of_eagles_layers(model: LlamaConfig, qkv_bias: bool) -> None:
    """Warns of what layers in EAGLE's own code do not have; `qkv_bias` is whether they have that one."""
    for differs, what in (
        (model.qkv_bias and not qkv_bias, "biases of queries, keys and values"),
        (model.output_bias, "a bias of attention's output"),
        (model.mlp_bias, "biases of the MLP"),
        (model.head_dim * model.num_heads != model.hidden_size, f"a head_dim of {model.head_dim}"),
    ):
        if differs:
            say(f"warning: this head has {what}, which EAGLE's own code does not compute; SGLang and vLLM do")


def eagles_rope(values: dict[str, Any]) -> dict[str, Any]:
    """A config for EAGLE's own code, which only reads `type` and `factor` of rope_scaling; a warning for others."""
    if (scaling := values["rope_scaling"]) is None:
        return values
    if values["rope_theta"] != 10_000:
        say(
            f"warning: EAGLE's own code takes rope_theta 10000 where a rope is scaled, and this head has "
            f"{values['rope_theta']:g}; SGLang and vLLM read it"
        )
    original = scaling.get("original_max_position_embeddings", values["max_position_embeddings"])
    if scaling["rope_type"] == "llama3" or original != values["max_position_embeddings"]:
        say(
            f"warning: EAGLE's own code does not support this head's rope scaling of type {scaling['rope_type']}, and "
            "rejects the config; SGLang and vLLM read it"
        )
        return values
    return {**values, "rope_scaling": {"type": scaling["rope_type"], "factor": scaling["factor"]}}


def speculators_config(head: OwnHead, layers: dict[str, Any], drafted: int, kind: str) -> dict[str, Any]:
    """The entries of config.json that heads of every kind have for speculators and vLLM.

    `layers` is the config.json of the head's layers as a model, `drafted` what vLLM drafts per round by default, `kind`
    the name of the format's algorithm.
    """
    (target, goal), verifier = head.with_target(), head.verifier
    if verifier is None:
        verifier = target.resolve().name
        say(f"the target is called {verifier} there; --verifier gives the id or folder that vLLM loads")
    return {
        "speculators_model_type": kind,
        "speculators_version": _SPECULATORS_VERSION,
        "torch_dtype": layers["torch_dtype"],
        "transformer_layer_config": {key: value for key, value in layers.items() if key != "architectures"},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": [hf_config.ARCHITECTURES[goal.family]]},
        },
    }


def tapped_after(outputs: Sequence[int], where: str, default: Callable[[int], tuple[int, ...]]) -> Taps:
    layers = tuple(layer + 1 for layer in outputs)
    return Taps(layers, f"{where}, read as layers whose outputs these are, so one more each", default)
