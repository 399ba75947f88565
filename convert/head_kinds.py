"""Which kind of draft head a folder holds, and which settings of its config.json are read or must have one value.

A setting that no table lists may change what the head computes, so the head is refused. A null counts as absent.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import gguf, meta
from jaxspec.convert.folders import read_config
from jaxspec.convert.head_parts import PublishedConfig, section
from jaxspec.convert.hf_config import ARCHITECTURES, integer
from jaxspec.convert.readers import Source, open_directory

# Objects in config.json that hold a head's own settings. Some projects write these settings at the top level.
SECTIONS = ("dflash_config", "dspark_config", "eagle_config")


class Row(NamedTuple):
    """Evidence of a kind: one match in any column is enough. Each pattern must match the whole text."""

    kind: str  # one that jaxspec reads, or what to call another
    types: str = ""  # of speculators' model type, or SpecForge's `projector_type`
    classes: str = ""  # of a name in `architectures`
    keys: str = ""  # of a setting, at the top level or in one of `SECTIONS`, that is not false, 0 or empty
    tensors: str = ""  # of a tensor's name


_TABLE = (  # the first match counts
    Row("a LiLiCorr head, which reranks candidates", "lilicorr", "LiLiCorr.*", "lilicorr_.*", r"(.*\.)?lilicorr\..*"),
    Row(
        "a DFlash2 head, with convolutions and a candidate selector",
        "dflash2",
        "DFlash2.*",
        "conv_kernel_size|conv_group_size|selector_rank|selector_top_k",
        r"(.*\.)?(candidate_selector|attention_conv|mlp_conv)\..*",
    ),
    Row("a Domino head", "domino", "Domino.*", "gru_hidden_dim|pure_draft_prefix_len", r"(.*\.)?prefix_gru\..*"),
    Row("P-EAGLE's head", "peagle", "PEagle.*", "parallel_drafting", r"(.*\.)?mask_hidden"),
    Row("an MTP head", "mtp", ".*MTP.*", "", r"(.*\.)?(mtp\..*|eh_proj\.weight)"),
    Row(
        "a head with layers of its target's family (Gemma, DeepSeek, Kimi and the like), not LLaMA's or Qwen3's",
        classes="(?!Qwen3DSpark).*DSparkModel|Gemma.*Eagle3.*|Eagle3Deepseek.*",
    ),
    Row(
        "a DSpark head as Model Optimizer writes it, with settings and names of its own",
        keys="use_confidence_head",
        tensors=r"(?!.*markov_head\.)(.*\.)?(markov_w[12]|confidence_proj)\..*",
    ),
    Row("a DSpark head inside a target of its own family (dspark_* settings)", keys="dspark_(?!config).*"),
    Row(
        "a DSpark head with a gated or recurrent Markov term (markov_head_type gated or rnn), not the vanilla one",
        tensors=r"(.*\.)?markov_head\.(gate|joint)_proj\..*",
    ),
    Row("dflash", "dspark", "DSparkDraftModel|DSparkSpeculator|Qwen3DSparkModel", "dspark_config"),
    Row(
        *("eagle3", "eagle3"),
        "LlamaForCausalLMEagle3|Eagle3LlamaForCausalLM|Eagle3Speculator|Eagle3DraftModel|Qwen3Eagle3Model",
    ),
    Row("dflash", "dflash", "DFlashDraftModel|Qwen3DFlashDraftModel|DFlashSpeculator", "dflash_config"),
    Row("eagle", "", "LlamaForCausalLMEagle|EagleLlamaForCausalLM|EAGLEModel"),
)
_OF_OTHERS = "|".join(row.keys for row in _TABLE if row.keys)  # settings without effect if they are off
_WHAT = {
    "eagle": "a head of EAGLE-1 or EAGLE-2",
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head",
    "medusa": "Medusa heads",
    "model": "a whole model and no head; use `jaxspec-convert llama`",
    "unknown": "no head of a known kind: neither fc.weight nor a decoder layer nor 0.0.linear.weight is among its "
    "tensors",
}
_EAGLE3 = re.compile(r"(.*\.)?(midlayer\..*|layers\.0\.hidden_norm\.weight|d2t|t2d)")
_DFLASH = re.compile(r"(?!.*(midlayer|layers\.\d+)\.)(.*\.)?hidden_norm\.weight")
_MEDUSA = re.compile(r"(.*\.)?medusa_head\..*|\d+\.\d+\.linear\.(weight|bias)")


def kind_of(source: Path) -> str:
    """The kind of head in a folder, by its config if that is clear, otherwise by its tensors' names; or `model`."""
    if gguf.find(source) is not None or meta.is_meta(source):
        return "model"
    config = read_config(source)
    if "medusa_num_heads" in config or any(source.glob("medusa_lm_head.*")):
        return "medusa"
    own = [config, *(section for name in SECTIONS if isinstance(section := config.get(name), dict))]
    types = [config.get("speculators_model_type"), *(each.get("projector_type") for each in own)]
    keys = [key for each in own for key, value in each.items() if value]
    tensors = open_directory(source)
    for kind, *patterns in _TABLE:
        if any(map(_matches, patterns, (types, _classes(config), keys, tensors))):
            return kind
    if (kind := config.get("speculators_model_type")) is not None:
        return f"a head in the speculators format of the kind {kind!r}"
    return "eagle" if config.get("model_type") == "eagle" else _by_tensors(tensors)


def _classes(config: Mapping[str, Any]) -> list[Any]:
    names = config.get("architectures")
    return names if isinstance(names, list) else [names]


def _matches(pattern: str, texts: Iterable[Any]) -> bool:
    return any(isinstance(text, str) and text and re.fullmatch(pattern, text) for text in texts)


def _by_tensors(tensors: Source) -> str:
    last = lambda end: next((t for name, t in tensors.items() if f".{name}".endswith(f".{end}")), None)
    fc = last("fc.weight")
    if fc is not None and any(map(_DFLASH.fullmatch, tensors)):
        return "dflash"
    if any(map(_EAGLE3.fullmatch, tensors)) or (fc is not None and fc.shape[1:] == (3 * fc.shape[0],)):
        return "eagle3"
    if any(map(_MEDUSA.fullmatch, tensors)):
        return "medusa"
    if fc is None and last("layers.0.input_layernorm.weight") is not None:
        return "model"
    return "unknown" if fc is None and last("layers.0.self_attn.q_proj.weight") is None else "eagle"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Lists of the target's layers that a head reads.
LISTED, OUTPUTS, INPUTS = "eagle_aux_hidden_state_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids"
NORMS = _words("norm_before_residual norm_before_fc fc_norm norm_output")
_LAYER = _words(  # read or refused by `hf_config`
    """architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim hidden_act rms_norm_eps max_position_embeddings max_sequence_length rope_theta
    rope_scaling rope_parameters partial_rotary_factor attention_bias mlp_bias tie_word_embeddings sliding_window
    use_sliding_window layer_types quantization_config"""
)
_NO_EFFECT = _words(  # transformers' own, the training's, and mixtures of experts, which the tensors would show
    """_attn_implementation _attn_implementation_autoset _name_or_path attention_backend attention_dropout
    attn_implementation auto_map loss_decay_gamma
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id has_no_defaults_at_init
    id2label initializer_range is_decoder label2id length_penalty max_length max_window_layers min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p
    unsloth_version use_bfloat16 use_cache draft_num_hidden_layers embed_requires_grad num_anchors speculators_config
    speculators_version step_loss_decay target_model_name_or_path target_model_type ttt_length decoder_sparse_step
    mlp_only_layers moe_intermediate_size norm_topk_prob num_experts num_experts_per_tok num_local_experts
    output_router_logits router_aux_loss_coef router_jitter_noise shared_expert_intermediate_size"""
)
_OF_LAYERS = {"is_neox_style": True, "input_embedding_scale": 1, "output_multiplier": 1} | dict.fromkeys(
    _words("add_cross_attention is_encoder_decoder use_mrope"), False
)


@dataclasses.dataclass(frozen=True)
class Keys:
    """The settings of a kind of head, besides those without effect."""

    read: frozenset[str]  # those that its conversion reads at the top level
    fixed: Mapping[str, Any]  # the only value that a setting may have, there or in one of `SECTIONS`
    nested: frozenset[str] = frozenset()  # those that it reads in one of `SECTIONS`
    classes: tuple[str, ...] = ()  # what `architectures` may name, beside the classes of the kind in `_TABLE`
    layers: str = "transformer_layer_config"  # the object that describes the layers, unless the top level does


_LLAMAS = tuple(ARCHITECTURES.values())
_MODEL_TYPES = (*ARCHITECTURES, "qwen3_moe", "phi3", "eagle", None)
_FUSED = _words("speculators_model_type transformer_layer_config draft_vocab_size target_hidden_size num_target_layers")
_BLOCKS = _words("block_size mask_token_id target_layer_ids")
_DSPARK = _words(
    """markov_rank markov_head_type enable_confidence_head confidence_head_with_markov confidence_head_alpha
    sample_from_anchor projector_type attention_mode causal causal_head is_causal"""
)
_EAGLE3_ON = "is_causal next_layer_regular use_aux_hidden_state use_input_layernorm_in_first_layer use_last_layernorm"
_KEYS = {
    "eagle": Keys(
        _words("bias qkv_bias eagle_fc_bias model method truncated_vocab_size"),
        {**_OF_LAYERS, "is_causal": True},
        classes=_LLAMAS,
        layers="model",
    ),
    "eagle3": Keys(
        _FUSED | NORMS | {"eagle_config", LISTED, OUTPUTS},
        {
            **_OF_LAYERS,
            **dict.fromkeys(_words(_EAGLE3_ON), True),
            **dict.fromkeys(_words("bias qkv_bias use_mtp_layernorm"), False),
            **dict.fromkeys(_words("parallel_draft_step parallel_draft_heads_num_layers"), 1),
        },
        NORMS | {LISTED},
        _LLAMAS,
    ),
    "dflash": Keys(
        _FUSED | _BLOCKS | _DSPARK | {"dflash_config", "dspark_config", INPUTS, "sliding_window_non_causal"},
        {**_OF_LAYERS, **dict.fromkeys(_words("shift_label use_swa use_confidence_head"), False)},
        _BLOCKS | _DSPARK,
    ),
    "medusa": Keys(_words("medusa_num_heads base_model_name_or_path"), {"medusa_num_layers": 1}),
}
# Settings that may differ between two places: they have another meaning in each, or the files decide.
_OF_EACH = _words("architectures model_type tie_word_embeddings") | {LISTED}


def read(source: Path, kind: str) -> PublishedConfig:
    """The config.json of a head, without its nulls. Raises CheckpointError for what jaxspec does not read."""
    raw, file, keys = read_config(source), source / "config.json", _KEYS[kind]
    if (other := kind_of(source)) != kind:
        raise CheckpointError(f"{source} holds {_WHAT.get(other, f'{other}; jaxspec does not read such heads yet')}")
    if kind != "medusa" and (held := _by_tensors(open_directory(source))) in ("eagle3", "dflash") and held != kind:
        raise CheckpointError(f"{source} has the config of {_WHAT[kind]}, and tensors of {_WHAT[held]}")
    raw = {key: value for key, value in raw.items() if value is not None or key in _LAYER}
    layers, own = section(raw, keys.layers, file), [section(raw, name, file) for name in SECTIONS]
    shape = _LAYER & (layers.keys() | _OF_EACH) if layers else _LAYER
    _check(raw, keys.read | shape, keys.fixed, file)
    _check(layers, keys.read | _LAYER if kind == "eagle" else _LAYER, _OF_LAYERS, file)
    for each in own:
        _check(each, keys.nested, keys.fixed, file)
    _refuse_twice([raw, *own, layers], file)
    classes = _classes(raw)
    if kind != "medusa":  # its config describes the target's layers, if any
        described = layers or raw
        if (family := described.get("model_type")) not in _MODEL_TYPES:
            raise CheckpointError(f"{file} has model_type {family!r}, and jaxspec reads no heads with such layers")
        known = [*keys.classes, *(name for row in _TABLE if row.kind == kind for name in row.classes.split("|"))]
        named = [name for name in classes if name is not None]
        if named and (len(named) > 1 or named[0] not in known):
            raise CheckpointError(f"{file} has architectures {named}, and such heads are read of {', '.join(known)}")
        named, types = raw.get("speculators_model_type"), [row.types for row in _TABLE if row.kind == kind if row.types]
        if named not in types and (named is not None or "transformer_layer_config" in raw):
            raise CheckpointError(
                f"{file} has speculators_model_type {named!r}, and such heads are read of {', '.join(types) or 'none'}"
            )
        ropes = [section(described, name, file) for name in ("rope_parameters", "rope_scaling")]
        ropes = [{"rope_type" if key == "type" else key: rope[key] for key in rope} for rope in ropes]
        theta = {"rope_theta": described.get("rope_theta")}
        _refuse_twice([theta, *ropes], file)
        if all(ropes) and theta | ropes[0] != theta | ropes[1]:
            raise CheckpointError(
                f"{file} has rope_parameters {ropes[0]} and rope_scaling {ropes[1]}, and projects disagree; delete one"
            )
        integer(raw, "num_target_layers", str(file), otherwise=1)
    given = {key: value for place in (raw, *own) for key, value in place.items()}
    return PublishedConfig(source, raw, given, classes)


def _check(values: Mapping[str, Any], read: frozenset[str], fixed: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError for a setting that is unknown or has another value than the only one computed."""
    for key, value in values.items():
        if value is None or key in read or key in _NO_EFFECT or (not value and _matches(_OF_OTHERS, [key])):
            continue
        if key not in fixed:
            raise CheckpointError(
                f"{file} sets {key!r}, which is unknown here; delete it if the project that wrote the head ignores it"
            )
        if value != fixed[key] or isinstance(value, bool) != isinstance(fixed[key], bool):
            raise CheckpointError(f"{file} sets {key!r} to {value!r}, and jaxspec only reads {fixed[key]!r}")


def _refuse_twice(places: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Raises CheckpointError for a setting that has different values at two places."""
    for key in sorted({key for place in places for key in place} - _OF_EACH - _NO_EFFECT):
        values = [place[key] for place in places if place.get(key) is not None]
        if other := [value for value in values[1:] if value != values[0]]:
            raise CheckpointError(f"{file} gives {key} twice, as {values[0]!r} and as {other[0]!r}")
