"""Hugging Face's config.json to LlamaConfig and back. A setting that jaxspec would compute wrongly is an error."""

import dataclasses
import reprlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.host.terminal import say
from jaxspec.model.config import LARGEST, LlamaConfig, Rope

# The numbers that each type of rope needs.
_ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}.union(
    *_ROPE_NUMBERS.values()
)
# Vicuna's 16k models have their length under this key, and the one before linear scaling in max_position_embeddings,
# which FastChat multiplies by the factor.
_LONGEST = "max_sequence_length"
_SLIDING = "sliding_attention"
Described = TypeVar("Described", LlamaConfig, Rope)
ARCHITECTURES = {kind: f"{kind.capitalize()}ForCausalLM" for kind in ("llama", "mistral", "mixtral", "qwen2", "qwen3")}
# Required whole numbers, by their names in LlamaConfig.
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
}
# By their names in lower case, since LLaMA's class was once spelled LLaMAForCausalLM. A model that was saved from the
# class without LM head is read too, if it has one, and so are models with Medusa heads (Medusa-2).
_KINDS = {
    name: kind
    for kind in ARCHITECTURES
    for name in (f"{kind}forcausallm", f"{kind}model", f"medusa{kind}forcausallm", f"medusamodel{kind}")
}
# Keys that change what transformers computes, and the values that jaxspec computes, the first of which is the default.
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True, None),
    "per_layer_config": (None, {}, []),
    "rope_condense_ratio": (None, 1),  # of LongChat, whose own code divides positions by it
    "transformers_weights": (None,),
}
# Values of absent keys: transformers' defaults. (A null differs: as many KV heads as query heads, no window.)
_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_MISTRAL = {**_COMMON, "max_position_embeddings": 131072, "num_key_value_heads": 8}
_QWEN = {**_COMMON, "max_position_embeddings": 32768, "num_key_value_heads": 32, "max_window_layers": 28,
         "sliding_window": 4096}  # fmt: skip
_EXPERTS = {"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
_DEFAULTS = {
    "llama": {**_COMMON, "max_position_embeddings": 2048},
    "mistral": {**_MISTRAL, "sliding_window": 4096},
    "mixtral": {**_MISTRAL, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}


def family(config: Mapping[str, Any]) -> str:
    """The `model_type` of a config. Raises CheckpointError unless it is a supported architecture."""
    classes = config.get("architectures") or []
    named = _KINDS.get(str(classes[0]).lower()) if isinstance(classes, list) and len(classes) == 1 else None
    kind = config.get("model_type") or named
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise CheckpointError(f"model_type {kind!r} is not supported; jaxspec reads {', '.join(ARCHITECTURES)}")
    if classes and named != kind:
        raise CheckpointError(f"architectures {classes} is not supported; a {kind} must be {ARCHITECTURES[kind]}")
    return kind


def to_llama(config: Mapping[str, Any]) -> LlamaConfig:
    """LlamaConfig of a Hugging Face config. Raises CheckpointError, naming a setting that is missing or unsupported."""
    kind = family(config)
    config = {**_DEFAULTS[kind], **config}
    _refuse(config, kind)
    sizes = {ours: integer(config, key) for ours, key in _SIZES.items()}
    rope = _rope(config, sizes["max_length"])
    if rope.scaling == "linear" and (longest := integer(config, _LONGEST, otherwise=1)) > sizes["max_length"]:
        rope = dataclasses.replace(rope, original_length=sizes["max_length"])
        sizes["max_length"] = longest
    sizes["max_length"] = min(sizes["max_length"], _window(config, kind) or LARGEST)
    experts = {ours: integer(config, key) for ours, key in _EXPERTS.items() if kind == "mixtral"}
    biased = kind in ("llama", "qwen3") and bool(boolean(config, "attention_bias"))
    return described(
        "config.json",
        LlamaConfig,
        **sizes,
        **experts,
        num_kv_heads=integer(config, "num_key_value_heads", otherwise=sizes["num_heads"]),
        head_dim=integer(config, "head_dim", otherwise=sizes["hidden_size"] // sizes["num_heads"]),
        norm_eps=positive(config, "rms_norm_eps"),
        rope=rope,
        tie_embeddings=bool(boolean(config, "tie_word_embeddings")),
        qkv_bias=biased or kind == "qwen2",
        output_bias=biased,
        mlp_bias=kind == "llama" and bool(boolean(config, "mlp_bias")),
        qk_norm=kind == "qwen3",
    )


def described(file: str, kind: Callable[..., Described], **fields: Any) -> Described:
    """A LlamaConfig or Rope of these fields. Raises CheckpointError, naming the file, if they do not describe one."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file} does not describe a model: {error}") from error


_GENERATION: dict[str, Any] = {  # settings of transformers' `generate` that change text, at values without effect
    "repetition_penalty": 1, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "min_length": 0, "min_new_tokens": 0,
    "suppress_tokens": None, "begin_suppress_tokens": None, "sequence_bias": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "num_beams": 1, "diversity_penalty": 0,
    "stop_strings": None, "guidance_scale": 1, "watermarking_config": None, "max_time": None, "dola_layers": None,
    "penalty_alpha": 0, "token_healing": False, "min_p": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "top_h": None, "force_words_ids": None,
}  # fmt: skip


def warn_of_unapplied_settings(config: Mapping[str, Any], generation: Mapping[str, Any] | None, source: Path) -> None:
    """Warns of settings by which transformers would write other text; None: there is no generation_config.json."""
    kind = family(config)
    whole = {**_DEFAULTS[kind], **config}
    if (window := _window(whole, kind) or LARGEST) < whole["max_position_embeddings"]:
        say(
            f"warning: {source / 'config.json'} has sliding-window attention, which jaxspec does not compute; so texts "
            f"are limited to the {window} positions of the window, where it has no effect"
        )
    file, values = ("config.json", config) if generation is None else ("generation_config.json", generation)
    active = [key for key, none in _GENERATION.items() if values.get(key) and values[key] != none]
    if active:
        listed = ", ".join(f"{key} {reprlib.repr(values[key])}" for key in active)
        say(f"warning: {source / file} sets {listed}, which jaxspec does not apply")
    if values.get("do_sample"):
        options = {"temperature": 1.0, "top_p": 1.0, "top_k": 50}  # transformers' defaults
        typed = " ".join(
            f"--{key.replace('_', '-')} {usual if values.get(key) is None else values[key]}"
            for key, usual in options.items()
        )
        say(f"warning: {source / file} sets do_sample, and jaxspec decodes greedily unless told otherwise: {typed}")
    eos_of = lambda where: _ids(where.get("eos_token_id"), "eos_token_id", file, LARGEST)
    if generation is not None and (more := [token for token in eos_of(config) if token not in eos_of(generation)]):
        say(
            f"warning: {source / 'config.json'} names tokens {more} as the end of text, and generation_config.json "
            "does not; texts end at them too, unlike transformers'"
        )


def special_tokens(
    config: Mapping[str, Any], generation: Mapping[str, Any], kind: str, vocab_size: int
) -> dict[str, Any]:
    """The special tokens of two configs for `CheckpointConfig`; all EOS ids of both count. Raises CheckpointError."""
    # Transformers' defaults, where there is no generation_config.json.
    usual = {} if generation or kind.startswith("qwen") else {"bos_token_id": 1, "eos_token_id": 2}

    def ids(key: str, most: int) -> list[int]:
        files = (("generation_config.json", generation), ("config.json", {**usual, **config}))
        return [token for file, values in files for token in _ids(values.get(key), key, file, most)]

    bos, eos = ids("bos_token_id", vocab_size), ids("eos_token_id", vocab_size)
    pad = ids("pad_token_id", LARGEST)  # not used, and outside the vocabulary in some models
    return {"bos": next(iter(bos), None), "eos": tuple(dict.fromkeys(eos)), "pad": next(iter(pad), None)}


def from_checkpoint(config: CheckpointConfig) -> dict[str, Any]:
    """Hugging Face's config.json of a checkpoint, the inverse of `to_llama`."""
    # Rope settings have the form of transformers before version 5, which every version reads.
    c, eos, rope = config.model, list(config.eos), config.model.rope
    numbers = {key: getattr(rope, key) for key in _ROPE_NUMBERS.get(rope.scaling, ())}
    with_length = rope.original_length and rope.scaling != "linear"
    length = {"original_max_position_embeddings": rope.original_length} if with_length else {}
    values = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "torch_dtype": config.source_dtype,
        **{key: getattr(c, ours) for ours, key in _SIZES.items()},
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tie_embeddings,
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling == "none" else {"rope_type": rope.scaling, **numbers, **length},
        "bos_token_id": config.bos,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        # Outside the vocabulary, where generation_config.json may have it, transformers would not load the model.
        "pad_token_id": None if config.pad is None or config.pad >= c.vocab_size else config.pad,
    }
    if c.rope.scaling == "linear" and c.rope.original_length:
        values |= {"max_position_embeddings": c.rope.original_length, _LONGEST: c.max_length}
    if config.family == "llama":
        values |= {"attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias}
    elif config.family == "qwen3":
        values |= {"attention_bias": c.qkv_bias, "use_sliding_window": False}
    else:
        values |= {"use_sliding_window": False} if config.family == "qwen2" else {"sliding_window": None}
    return values | {key: getattr(c, ours) for ours, key in _EXPERTS.items() if c.num_experts}


def _refuse(config: Mapping[str, Any], kind: str) -> None:
    """Raises CheckpointError for unsupported settings that would change the computation."""
    for key in ("quantization_config", "compression_config", "quantization"):  # the last is MLX's
        if quantization := config.get(key):
            method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
            raise CheckpointError(f"the checkpoint is quantized ({key}: {method}); convert the one it was made from")
    for key, values in _ONLY.items():
        if (value := config.get(key, values[0])) not in values:
            raise CheckpointError(f"{key} {reprlib.repr(value)} is not supported, only {values[0]!r}")
    types, known = config.get("layer_types") or [], ["full_attention"]
    if config.get("sliding_window") is not None:
        known.append(_SLIDING)
    if other := [layer for layer in types if layer not in known] if isinstance(types, list) else [types]:
        raise CheckpointError(f"layer_types {other[0]!r} is not supported, only {' and '.join(map(repr, known))}")


def _window(config: Mapping[str, Any], kind: str) -> int | None:
    """The sliding window that some layers have, in positions; None without one.

    It has no effect on a text that is no longer, so such a model is read with as many positions.
    """
    if config.get("sliding_window") is None:
        return None
    slides = kind in ("mistral", "mixtral") or _SLIDING in (config.get("layer_types") or [])
    if config.get("use_sliding_window"):  # Qwen: from layer `max_window_layers` on
        first, layers = config.get("max_window_layers"), integer(config, "num_hidden_layers")
        slides |= not isinstance(first, int) or first < layers
    return integer(config, "sliding_window") if slides else None


def _rope(config: Mapping[str, Any], max_length: int) -> Rope:
    """The rope, from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before)."""
    # As in transformers, `rope_scaling` comes first, and for `llama3` a length in the config itself.
    values = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(values, Mapping):
        raise CheckpointError(f"rope_scaling {values!r} is not supported, it must be an object")
    kind = values.get("rope_type") or values.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE_NUMBERS:
        raise CheckpointError(f"rope type {kind!r} is not supported; jaxspec supports {', '.join(_ROPE_NUMBERS)}")
    if unknown := sorted(key for key in values.keys() - _ROPE_KEYS if values[key] is not None):
        raise CheckpointError(f"rope setting {unknown[0]!r} is not supported")
    for where in (values, config):
        if (part := where.get("partial_rotary_factor", 1)) not in (None, 1):
            raise CheckpointError(f"partial_rotary_factor {part} is not supported, only 1")
    theta = next((where for where in (values, config) if where.get("rope_theta") is not None), {"rope_theta": 10000.0})
    settings: dict[str, Any] = {key: positive(values, key) for key in _ROPE_NUMBERS[kind]}
    if kind in ("dynamic", "llama3"):
        key = "original_max_position_embeddings"
        outer = config if kind == "llama3" and config.get(key) is not None else values
        settings["original_length"] = integer(outer, key, otherwise=max_length)
    settings["scaling"] = "none" if kind == "default" else kind
    return described("config.json", Rope, theta=positive(theta, "rope_theta"), **settings)


def integer(
    config: Mapping[str, Any], key: str, file: str = "config.json", otherwise: int | None = None, least: int = 1
) -> int:
    """A whole number from `least` (0 or 1) on, or absent if there is an `otherwise`; else a CheckpointError."""
    if (value := config.get(key)) is None and otherwise is not None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        what = f"a whole number{' above 0' * least} as {key!r}"
        raise CheckpointError(f"{file} must give {what}, and it has {reprlib.repr(value)}")
    return value


def positive(config: Mapping[str, Any], key: str, file: str = "config.json") -> float:
    """A required setting that must be a finite number above 0; else a CheckpointError."""
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{file} must give a number above 0 as {key!r}, and it has {reprlib.repr(value)}")
    return float(value)


def boolean(config: Mapping[str, Any], key: str, file: Path | str = "config.json") -> bool | None:
    """A setting that is true, false or absent; else a CheckpointError."""
    if not isinstance(value := config.get(key), bool | None):
        raise CheckpointError(f"{file} must give true or false as {key!r}, and it has {reprlib.repr(value)}")
    return value


def _ids(value: Any, key: str, file: str, vocab_size: int) -> list[int]:
    """Token ids in a config: absent, a number, or a list. Ids below 0 mean none."""
    tokens = value if isinstance(value, list) else [] if value is None else [value]
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise CheckpointError(f"{file} must give a token id as {key!r}, and it has {reprlib.repr(value)}")
        if token >= vocab_size:
            raise CheckpointError(f"{file} has {key} {token}, which is outside the vocabulary of {vocab_size}")
    return [token for token in tokens if token >= 0]
