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
from jaxspec.convert.names import is_kernel, unprefixed
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
INCOMPLETE = "the files are incomplete, or their config is another head's"
_SPECULATORS_VERSION = "0.9.0"  # of the format that is written


@dataclasses.dataclass(frozen=True)
class Taps:
    """The target layers whose inputs a head reads."""

    layers: tuple[int, ...] | Callable[[int], tuple[int, ...]]  # from 0, or a function of the target's number of layers
    reason: str  # why these layers, as a message for users

    def of(self, target_layers: int) -> tuple[int, ...]:
        """The layers in a target of `target_layers` layers."""
        return self.layers(target_layers) if callable(self.layers) else self.layers


@dataclasses.dataclass(frozen=True)
class PublishedConfig:
    """The config.json of a published head, as `head_kinds.read` checks it."""

    source: Path
    raw: dict[str, Any]  # its top level
    given: dict[str, Any]  # the top level and the objects with the head's own settings
    classes: list[Any]  # the class names in `architectures`

    @property
    def file(self) -> Path:
        return self.source / "config.json"

    @property
    def is_speculators(self) -> bool:
        """Whether it has the layout of speculators and vLLM."""
        keys = ("speculators_model_type", "speculators_config", "transformer_layer_config")
        return not self.raw.keys().isdisjoint(keys)

    @property
    def layout(self) -> str:
        """The project whose layout it has."""
        if self.is_speculators:
            return "speculators and vLLM"
        # SpecForge writes DeepSpec's class for SGLang, beside settings in a section.
        section_of_dspark = self.given.get("projector_type") == "dspark" or bool(self.raw.get("dspark_config"))
        if not section_of_dspark and not {"Qwen3DSparkModel", "Qwen3Eagle3Model"}.isdisjoint(map(str, self.classes)):
            return "DeepSpec"
        own_class = "DSparkDraftModel" in self.classes or "LlamaForCausalLMEagle3" in self.classes
        if own_class or section_of_dspark or "eagle_config" in self.raw:
            return "SpecForge and SGLang"
        return "its authors"

    @property
    def layers(self) -> dict[str, Any]:
        """The settings of the head's layers. Raises CheckpointError if they are missing."""
        layers = self.raw.get("transformer_layer_config") if self.is_speculators else self.raw
        if not isinstance(layers, dict):
            raise CheckpointError(f"{self.file} must describe the head's layers in 'transformer_layer_config'")
        return layers


@dataclasses.dataclass(frozen=True)
class PublishedHead:
    """A published head, whose config and tensors' headers fit each other."""

    config: PublishedConfig
    drafter: Drafter
    title: str  # its kind, such as `EAGLE-3 head`
    vocab_size: int  # of its target, as is hidden_size
    hidden_size: int
    settings: dict[str, Any]  # of the drafter, without the taps
    published: Callable[[str], str]  # maps a jaxspec name to the name in the files
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # by jaxspec's names
    model: LlamaConfig | None = None  # shape of its decoder layers, if it has any
    taps: Taps | None = None  # None: it reads no layers of the target
    options: type[DflashOptions] | type[Eagle3Options] | None = None  # the type of its settings, if it has one
    lm_head: Tensor | None = None  # the target's, which an older variant of EAGLE's files contains

    def with_tensors(self, tensors: Source) -> "PublishedHead":
        """The head with its tensors. Raises CheckpointError where they do not fit its config."""
        source, settings, width = self.config.source, self.settings, self.hidden_size
        assert self.model is not None
        if self.taps is not None:
            count, fc = len(self.taps.of(1)), tensors.get("fc.weight")
            rows, *inputs = (0,) if fc is None else fc.shape or (0,)
            if rows == self.model.hidden_size and len(inputs) == 1 and inputs[0] != count * width:
                raise CheckpointError(
                    f"fc.weight in {source} has {inputs[0]} inputs, and {count} layers of width {width} are named: "
                    f"{self.taps.reason}; {INCOMPLETE if inputs[0] % width else 'use --taps'}"
                )
            settings = {**settings, "taps": [0] * count}
        held = {int(one[1]) for name in tensors if (one := _LAYER.match(name))}
        if held and max(held) + 1 < self.model.num_layers:  # before so many layers are built
            raise CheckpointError(
                f"{source} has num_hidden_layers {self.model.num_layers}, the files hold {max(held) + 1}; {INCOMPLETE}"
            )
        shape = HeadShape(self.model, settings)
        try:
            abstract = nnx.eval_shape(lambda: self.drafter.build_head(shape, nnx.Rngs(0)))
        except ValueError as error:
            raise CheckpointError(f"{self.config.file}: {error}") from error
        return dataclasses.replace(self, tensors=match(abstract, tensors, self.published, str(source)))


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


Unsupported = Mapping[str, Sequence[tuple[bool, str]]]
"""By format: what the format, or the code that reads it, does not support, each with whether the head has it."""


@dataclasses.dataclass(frozen=True)
class Files:
    """What is written for a head."""

    config: dict[str, Any]  # config.json
    arrays: Mapping[str, np.ndarray]  # by jaxspec's names
    published: Callable[[str], str]  # maps a jaxspec name to the name in the files
    summary: str  # for the message that it was written
    name: str = "model.safetensors"


def shape_of(
    config: PublishedConfig, layers: Mapping[str, Any], *, any_width: bool = False, **read_as: Any
) -> tuple[LlamaConfig, tuple[int, ...]]:
    """The shape of the layers with these settings, and their windows (`windows_of`).

    `any_width` allows another width than the target's; `read_as` are settings that override the config's.
    """
    windows = windows_of(layers, config.file)
    shape = hf_config.to_llama({**layers, "architectures": None, **read_as})
    width = integer(config.raw, "target_hidden_size", str(config.file), shape.hidden_size)
    if width != shape.hidden_size and not any_width:
        raise CheckpointError(f"{config.file} has target_hidden_size {width}; heads must be as wide as their target")
    return shape, windows


def warn_of_theta(model: LlamaConfig, file: Path) -> None:
    """Warns of a rope_theta that EAGLE's own code ignores; see `as_eagles`."""
    if model.rope.scaling in ("linear", "dynamic") and model.rope.theta != 10_000:
        say(
            f"warning: rope_theta {model.rope.theta:g} of {file} is read, as SGLang and vLLM do; if EAGLE's own code "
            "trained this head, set it to 10000, which that code takes where a rope is scaled"
        )


def windows_of(layers: Mapping[str, Any], file: Path) -> tuple[int, ...]:
    """The sliding window of each of a head's layers, 0 for none; empty if none has one. Raises CheckpointError."""
    types, window = layers.get("layer_types"), layers.get("sliding_window")
    if not types:
        if window is not None and layers.get("use_sliding_window") is not False:
            raise CheckpointError(f"{file} sets sliding-window attention (sliding_window {window}), and no layer_types")
        return ()
    known = {"full_attention": False, "sliding_attention": True}
    if other := [each for each in types if str(each) not in known] if isinstance(types, list) else [types]:
        raise CheckpointError(f"layer_types {other[0]!r} in {file} is not supported")
    if not any(known[each] for each in types):
        return ()
    used = layers.get("use_sliding_window")  # without it Qwen's layers have no windows, and LLaMA's do not read it
    if used is not True and (used is not None or layers.get("model_type") != "llama"):
        raise CheckpointError(f"{file} has layer_types 'sliding_attention', and use_sliding_window is not true")
    size, layer_count = integer(layers, "sliding_window", str(file)), layers.get("num_hidden_layers")
    if len(types) != layer_count:
        raise CheckpointError(f"{file} has {len(types)} layer_types, and num_hidden_layers {layer_count}")
    return tuple(size * known[each] for each in types)


def with_windows(layers: dict[str, Any], windows: Sequence[int]) -> dict[str, Any]:
    """A config of layers, with these sliding windows; the inverse of `windows_of`."""
    size = max(windows, default=0)
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    full = ["full_attention"] * layers["num_hidden_layers"]
    return layers | {"use_sliding_window": size > 0, "sliding_window": size or None, "layer_types": types or full}


FULL = {"layer_types": None, "sliding_window": None, "use_sliding_window": None}
"""Overrides for `shape_of` where heads may have windows: `windows_of` reads these settings, `hf_config` must not."""


def open_head(source: Path, known: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a head, floats apart from `DRAFT_MAPS`; `known` is as in `unprefixed`."""
    if all((source / name).exists() for name in MODEL_FILES):
        say(f"warning: {source} holds both {' and '.join(MODEL_FILES)}; only the first is read")
    tensors = unprefixed(open_directory(source), source, known)
    check_dtypes({name: tensor for name, tensor in tensors.items() if name not in DRAFT_MAPS})
    return tensors


def listed_layers(values: Mapping[str, Any], key: str, file: Path, ascending: bool = False) -> tuple[int, ...] | None:
    """The layer numbers listed in a config, None without a list; a CheckpointError if invalid or not `ascending`."""
    if (layers := values.get(key)) is None:
        return None
    if not isinstance(layers, list) or not layers or not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"{file} must list numbers of layers as {key!r}, and it has {reprlib.repr(layers)}")
    if ascending and layers != sorted(set(layers)):
        raise CheckpointError(f"{file} lists {reprlib.repr(layers)} as {key!r}, not in ascending order; use --taps")
    return tuple(layers)


def disorder(taps: Sequence[int]) -> tuple[bool, str]:
    """An entry of `Unsupported`: whether these layers are not in ascending order, as `listed_layers` can require."""
    return list(taps) != sorted(set(taps)), f"reads the layers {', '.join(map(str, taps))} in this order"


def section(values: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    """An object inside a config, without its nulls; an empty one if absent. Raises CheckpointError unless it is one."""
    inner = {} if values.get(key) is None else values[key]
    if not isinstance(inner, dict):
        raise CheckpointError(f"{file} must have an object as {key!r}, not {inner!r}")
    return {name: value for name, value in inner.items() if value is not None}


def read_draft_vocabulary(config: PublishedConfig, tensors: dict[str, Tensor], vocab_size: int) -> str | None:
    """The mask of a head's draft vocabulary, as in `draft_vocabulary`; None for the whole vocabulary.

    `d2t` and `t2d` are removed from `tensors`, the head's. Raises CheckpointError where they are not valid.
    """
    source, given = config.source, config.raw.get("draft_vocab_size")
    maps = {name: tensors.pop(name) for name in DRAFT_MAPS if name in tensors}
    lm_head = tensors.get("lm_head.weight")
    if lm_head is not None and len(lm_head.shape) != 2:
        raise CheckpointError(f"lm_head.weight in {source} has shape {list(lm_head.shape)}, and must be a matrix")
    drafted = vocab_size if lm_head is None else lm_head.shape[0]
    if given not in (None, drafted):
        held = "tensor lm_head.weight is missing" if lm_head is None else f"lm_head.weight has {drafted} rows"
        raise CheckpointError(f"{config.file} has draft_vocab_size {given}, and {held}; {INCOMPLETE}")
    if "d2t" not in maps:
        if drafted < vocab_size or maps:
            raise CheckpointError(
                f"tensor d2t is missing in {source}, which gives the {drafted} of {vocab_size} tokens of lm_head.weight"
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
        raise CheckpointError(f"d2t in {source} is 0 everywhere, so it was never filled; use that of its training")
    ids = offsets.astype(np.int64) + np.arange(drafted)
    if (np.diff(ids) <= 0).any():
        raise CheckpointError(f"d2t in {source} gives ids that do not ascend, so it does not hold offsets")
    try:
        mask = draft_vocabulary.to_mask(ids.tolist(), vocab_size)
    except ValueError as error:
        raise CheckpointError(f"d2t in {source}: {error}") from error
    if inside is not None and not np.array_equal(np.flatnonzero(inside), ids):
        raise CheckpointError(
            f"d2t and t2d in {source} name different tokens ({len(ids)} and {inside.sum()}); one of them is another "
            "head's, or d2t holds ids instead of offsets"
        )
    return mask


def _read_map(tensor: Tensor, kinds: str, words: str, size: int) -> np.ndarray:
    where = f"tensor {tensor.name} in {tensor.file}"
    if tensor.shape != (size,):
        raise CheckpointError(f"{where} has shape {list(tensor.shape)}, and must have [{size}]")
    whole = re.fullmatch(r"bool|u?int\d+|[iu]\d+", tensor.dtype.lower())
    if not whole or (array := tensor.read()).dtype.kind not in kinds:
        raise CheckpointError(f"{where} has dtype {tensor.dtype}, and must hold {words}; take files that were not cast")
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
    arrays = dict(head.arrays)
    for ours in names:
        if ours in arrays:
            continue
        if (theirs := lm_head_of(goal) if ours == "head.kernel" else ours) is None:
            raise CheckpointError(
                f"the LM head of {target} is {goal.quantize}; name a checkpoint that was converted without --quantize"
            )
        array = parameters.read_arrays(target / "params", [theirs])[theirs].astype(head.config.source_dtype)
        arrays[ours] = array.T if is_kernel(ours) and not is_kernel(theirs) else array
    return arrays


def lm_head_of(target: CheckpointConfig) -> str | None:
    """The target's parameter that is its LM head; None if it is quantised, and so cannot be compared."""
    if target.model.tie_embeddings:
        return "embedding"
    return "head.kernel" if target.quantize is None else None


def as_llama(head: OwnHead) -> dict[str, Any]:
    """The config.json of a head's layers as a LLaMA or, with norms of queries and keys, as a Qwen3."""
    (_, goal), config = head.with_target(), head.config
    if config.model.qk_norm and config.model.mlp_bias:
        raise CheckpointError("this head norms queries and keys and has biases of the MLP; no other project reads it")
    family = "qwen3" if config.model.qk_norm else "llama"
    return hf_config.from_checkpoint(
        dataclasses.replace(goal, family=family, model=config.model, source_dtype=config.source_dtype)
    )


def as_eagles(head: OwnHead, qkv_bias: bool) -> dict[str, Any]:
    """`as_llama` for EAGLE's own code, with warnings of what that does not compute.

    `qkv_bias` is whether it has biases of queries, keys and values. Of rope_scaling it only reads `type` and `factor`.
    """
    model, values = head.config.model, as_llama(head)
    for differs, what in (
        (model.qkv_bias and not qkv_bias, "biases of queries, keys and values"),
        (model.output_bias, "a bias of attention's output"),
        (model.mlp_bias, "biases of the MLP"),
        (model.head_dim * model.num_heads != model.hidden_size, f"a head_dim of {model.head_dim}"),
    ):
        if differs:
            say(f"warning: this head has {what}, which EAGLE's own code does not compute; vLLM does")
    if (scaling := values["rope_scaling"]) is None:
        return values
    original = scaling.get("original_max_position_embeddings", values["max_position_embeddings"])
    if scaling["rope_type"] == "llama3" or original != values["max_position_embeddings"]:
        say(
            f"warning: EAGLE's own code does not support this head's rope scaling ({scaling['rope_type']}); SGLang does"
        )
        return values
    if values["rope_theta"] != 10_000:
        say(
            f"warning: EAGLE's own code takes rope_theta 10000 where a rope is scaled, and not {values['rope_theta']:g}"
        )
    return {**values, "rope_scaling": {"type": scaling["rope_type"], "factor": scaling["factor"]}}


def speculators_config(head: OwnHead, layers: dict[str, Any], drafted: int, kind: str) -> dict[str, Any]:
    """The entries of config.json that heads of every kind have for speculators and vLLM.

    `layers` is the config of the head's layers, `drafted` what vLLM drafts per round by default, `kind` the algorithm.
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


def tapped_after(outputs: Sequence[int], where: str) -> Taps:
    """The taps whose layers are listed by their outputs."""
    layers = tuple(layer + 1 for layer in outputs)
    return Taps(layers, f"{where}, read as layers whose outputs these are, so one more each")
