"""The settings in config.json of published heads: for each kind, which are read, and which must have one value.

A setting that no table knows may change what the head computes, so the head is refused. A null counts as absent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import kinds
from jaxspec.convert.head_parts import section


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LISTED, OUTPUTS, INPUTS = "eagle_aux_hidden_state_layer_ids", "target_layer_ids", "aux_hidden_state_layer_ids"
"""Lists of the target's layers that a head reads."""
NORMS = _words("norm_before_residual norm_before_fc fc_norm norm_output")
_LAYER = _words(  # read or refused by `hf_config`
    """architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim hidden_act rms_norm_eps max_position_embeddings rope_theta rope_scaling rope_parameters
    partial_rotary_factor attention_bias mlp_bias tie_word_embeddings sliding_window use_sliding_window layer_types
    quantization_config"""
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
    """The settings of a kind of head, besides those without effect.

    Attributes:
        read: those that its conversion reads at the top level.
        nested: those that it reads in one of `kinds.SECTIONS`.
        fixed: those that must have a value, at either place.
        classes: what `architectures` may name; empty: anything.
        layers: the object that describes the head's layers in some layouts. In the others the top level does.
    """

    read: frozenset[str]
    nested: frozenset[str]
    fixed: Mapping[str, Any]
    classes: tuple[str, ...] = ()
    layers: str = "transformer_layer_config"


_LLAMAS = tuple(f"{family}ForCausalLM" for family in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3"))
_MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "eagle", None)
_FUSED = _words("speculators_model_type transformer_layer_config draft_vocab_size target_hidden_size num_target_layers")
_BLOCKS = _words("block_size mask_token_id target_layer_ids")
_EAGLE3_ON = "is_causal next_layer_regular use_aux_hidden_state use_input_layernorm_in_first_layer use_last_layernorm"
_DFLASH_OFF = """causal causal_head is_causal sample_from_anchor shift_label use_swa confidence_head_with_markov
    enable_confidence_head use_confidence_head"""
_KEYS = {
    "eagle": Keys(
        _words("bias qkv_bias eagle_fc_bias model method truncated_vocab_size"),
        frozenset(),
        {**_OF_LAYERS, "is_causal": True},
        (*_LLAMAS, "LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EAGLEModel"),
        "model",
    ),
    "eagle3": Keys(
        _FUSED | NORMS | {"eagle_config", LISTED, OUTPUTS},
        NORMS | {LISTED},
        {
            **_OF_LAYERS,
            **dict.fromkeys(_words(_EAGLE3_ON), True),
            **dict.fromkeys(_words("bias qkv_bias use_mtp_layernorm"), False),
            **dict.fromkeys(_words("parallel_draft_step parallel_draft_heads_num_layers"), 1),
        },
        (*_LLAMAS, "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Qwen3Eagle3Model"),
    ),
    "dflash": Keys(
        _FUSED | _BLOCKS | {"dflash_config", INPUTS, "sliding_window_non_causal"},  # the last needs windows
        _BLOCKS,
        {**_OF_LAYERS, **dict.fromkeys(_words(_DFLASH_OFF), False), "markov_rank": 0, "projector_type": "dflash"},
        ("DFlashDraftModel", "Qwen3DFlashDraftModel", "DFlashSpeculator"),
    ),
    "medusa": Keys(_words("medusa_num_heads base_model_name_or_path"), frozenset(), {"medusa_num_layers": 1}),
}
_OF_EACH = _words("architectures model_type tie_word_embeddings") | {LISTED}
"""Settings that may differ between two places: each has its own meaning there, or the files decide."""


def read(source: Path, kind: str) -> dict[str, Any]:
    """The config.json of a head, checked; settings of its own that are null are left out.

    Raises:
        CheckpointError: the folder holds another kind of head, or a setting is unknown, contradicts another, or means
            something that jaxspec does not compute; the message names it.
    """
    raw, file, keys = kinds.read(source, kind), source / "config.json", _KEYS[kind]
    raw = {key: value for key, value in raw.items() if value is not None or key in _LAYER}
    layers, own = section(raw, keys.layers, file), [section(raw, name, file) for name in kinds.SECTIONS]
    shape = _LAYER & (layers.keys() | _OF_EACH) if layers else _LAYER
    _check(raw, keys.read | shape, keys.fixed, file)
    _check(layers, keys.read | _LAYER if kind == "eagle" else _LAYER, _OF_LAYERS, file)
    for each in own:
        _check(each, keys.nested, keys.fixed, file)
    _refuse_twice([raw, *own, layers], file)
    if kind != "medusa":  # its config describes the target's layers, if any
        described, classes = layers or raw, [name for name in kinds.classes_of(raw) if name is not None]
        if (family := described.get("model_type")) not in _MODEL_TYPES:
            raise CheckpointError(f"{file} has model_type {family!r}, and jaxspec reads no heads with such layers")
        if classes and (len(classes) > 1 or classes[0] not in keys.classes):
            raise CheckpointError(
                f"{file} has architectures {classes}, and jaxspec reads such heads of {', '.join(keys.classes)}"
            )
        ropes = [section(described, name, file) for name in ("rope_parameters", "rope_scaling")]
        ropes = [{"rope_type" if key == "type" else key: rope[key] for key in rope} for rope in ropes]
        _refuse_twice([{"rope_theta": described.get("rope_theta")}, *ropes], file)
    return raw


def _check(values: Mapping[str, Any], read: frozenset[str], fixed: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError for a setting that is unknown or has another value than the only one computed."""
    for key, value in values.items():
        if value is None or key in read or key in _NO_EFFECT:
            continue
        if key not in fixed:
            raise CheckpointError(
                f"{file} sets {key!r}, which jaxspec does not know and which may change what the head computes; delete "
                "it if the project that wrote the head ignores it"
            )
        if value != fixed[key] or isinstance(value, bool) != isinstance(fixed[key], bool):
            raise CheckpointError(
                f"{file} sets {key!r} to {value!r}, and jaxspec only reads heads where it is {fixed[key]!r}"
            )


def _refuse_twice(places: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Raises CheckpointError for a setting that has different values at two places."""
    for key in sorted({key for place in places for key in place} - _OF_EACH - _NO_EFFECT):
        found = [place[key] for place in places if place.get(key) is not None]
        if other := [value for value in found if value != found[0]]:
            raise CheckpointError(f"{file} gives {key} twice, as {found[0]!r} and as {other[0]!r}")
