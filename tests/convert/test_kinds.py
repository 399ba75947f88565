"""Heads with the tensors of one kind and the meaning of another: what is read, and what is refused by name.

The cases are those of DeepSpec, SpecForge, speculators, JetSpec, Model Optimizer and others, whose heads differ in keys
of config.json rather than in tensors.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import heads, llama
from tests.convert.commands import refused
from tests.convert.published_heads import (
    BLOCK,
    DEEPSPEC,
    DFLASH,
    DFLASH_SHAPE,
    DFLASH_SPECULATORS,
    DRAFTED,
    DSPARK_TERMS,
    EAGLE,
    EAGLE3,
    HEADS,
    LISTED,
    MASK,
    MEDUSA,
    MEDUSA_HEADS,
    MODEL_OPTIMIZER,
    VOCABULARY,
    WIDTH,
    dflash,
    eagle,
    eagle3,
    ids,
    maps,
    medusa,
    write,
)

ONES = lambda *shape: np.ones(shape, np.float32)
WIDE = ONES(WIDTH)
NORM, EAGLE_NORM = "midlayer.hidden_norm.weight", "layers.0.post_attention_layernorm.weight"
TWISTED = maps(ids())["d2t"][::-1].copy()
WITHOUT = {"mask_token_id": None, "target_layer_ids": [1, 5]}
TABLES = {"embed_tokens.weight": ONES(VOCABULARY, WIDTH), "lm_head.weight": ONES(VOCABULARY, WIDTH)}
MARKOV = {"markov_head.markov_w1.weight": ONES(VOCABULARY, 4), "markov_head.markov_w2.weight": ONES(VOCABULARY, 4)}
CONFIDENCE = {"confidence_head.proj.weight": ONES(1, WIDTH + 4), "confidence_head.proj.bias": ONES(1)}
FLAT = {key: value for key, value in DEEPSPEC.items() if key != "architectures"}
DSPARK = DSPARK_TERMS | {"markov_rank": 4}
OFFICIAL, SPECULATORS = DFLASH, DFLASH_SPECULATORS
NESTED = OFFICIAL["dflash_config"]


def said(source: Path, **how: Any) -> str:
    """The sentence with which a head is refused."""
    with pytest.raises(CheckpointError) as caught:
        heads.plan(source, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without(key: str, config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def nested(**settings: Any) -> dict[str, Any]:
    """DFlash's own config with more settings in its section."""
    return {**OFFICIAL, "dflash_config": {**NESTED, **settings}}


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        # DeepSpec's DFlash
        (without("mask_token_id", DEEPSPEC), TABLES, ["mask_token_id"]),
        *((without(key, DEEPSPEC), TABLES, [key]) for key in ("num_anchors", "markov_rank", "enable_confidence_head")),
        ({**DEEPSPEC, "architectures": ["Gemma4DSparkModel"]}, TABLES, ["Gemma"]),
        ({**FLAT, "architectures": ["DFlashDraftModel"]}, TABLES, ["sample_from_anchor", "--rows"]),
        (FLAT, {}, ["sample_from_anchor"]),
        (nested(shift_label=True), {}, ["'shift_label' to True"]),
        (
            {**DEEPSPEC, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}, {},
            ["no is_causal", "projects disagree"],
        ),
        # DSpark, by DeepSpec, SpecForge, Model Optimizer and speculators
        ({**DEEPSPEC, **DSPARK, "markov_head_type": "gated"}, {"markov_head.gate_proj.bias": ONES(4)}, ["gated"]),
        ({**DEEPSPEC, **DSPARK, "markov_head_type": "rnn"}, MARKOV | CONFIDENCE, ["'markov_head_type' to 'rnn'"]),
        (DEEPSPEC, MARKOV, ["markov_rank 0", "markov_head.markov_w1.weight is in the files"]),
        (DEEPSPEC, CONFIDENCE, ["enable_confidence_head False", "confidence_head.proj.weight is in the files"]),
        ({**DEEPSPEC, "markov_rank": 4}, {}, ["markov_rank 4", "markov_head.markov_w1.weight is missing"]),
        ({**DEEPSPEC, **DSPARK}, MARKOV, ["enable_confidence_head True", "confidence_head.proj.weight is missing"]),
        (without("confidence_head_with_markov", {**DEEPSPEC, **DSPARK}), MARKOV | CONFIDENCE, ["gives no confidence_"]),
        ({**DEEPSPEC, "markov_rank": 4, "dflash_config": {"markov_rank": 8}}, MARKOV, ["markov_rank twice", "4", "8"]),
        ({**DEEPSPEC, **DSPARK, "markov_rank": 5}, MARKOV | CONFIDENCE, ["has shape [1, 36]", "[1, 37]"]),
        ({**DEEPSPEC, "markov_rank": -1}, {}, ["a whole number as 'markov_rank'"]),
        ({**DEEPSPEC, "markov_rank": True}, {}, ["a whole number as 'markov_rank'"]),
        (nested(markov_rank=4), MARKOV, ["markov_rank", "only DSpark heads have"]),
        (nested(enable_confidence_head=True), CONFIDENCE, ["enable_confidence_head", "only DSpark heads have"]),
        ({**nested(projector_type="dflash"), "architectures": ["DSparkDraftModel"]}, {}, ["'projector_type'"]),
        (nested(projector_type="dspark", attention_mode="mla"), {}, ["'attention_mode' to 'mla'"]),
        (nested(projector_type="dspark", confidence_head_alpha="1"), {}, ["a number as 'confidence_head_alpha'"]),
        (OFFICIAL, {"markov_w1.weight": ONES(VOCABULARY, 4)}, ["Model Optimizer"]),
        (OFFICIAL, {"confidence_proj.weight": ONES(1, WIDTH)}, ["Model Optimizer"]),
        (nested(use_confidence_head=True), {}, ["Model Optimizer"]),
        ({**OFFICIAL, "dspark_block_size": 4}, {}, ["dspark_* settings"]),
        ({**OFFICIAL, "dspark_config": {"block_size": 4}}, {}, ["dspark_config", "DFlashDraftModel", "--rows"]),
        ({**DEEPSPEC, "target_layer_ids": [5, 1]}, TABLES, ["[5, 1]", "ascending order", "--taps"]),
        ({**OFFICIAL, "sliding_window_non_causal": True}, {}, ["only speculators' format has", "is_causal"]),
        ({**OFFICIAL, "num_hidden_layers": 900}, {}, ["num_hidden_layers 900", "the files hold 2"]),
        ({**OFFICIAL, "rms_norm_eps": 10**400}, {}, ["a number above 0 as 'rms_norm_eps'"]),
        *(({**OFFICIAL, "layer_types": types}, {}, ["layer_types"]) for types in (3, True, "full_attention", [[]])),
        (
            {**OFFICIAL, "rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_type": "default"}}, {},
            ["rope_parameters {'rope_theta': 1000000.0}", "projects disagree"],
        ),
        ({**OFFICIAL, "dspark_config": {"markov_rank": 4}}, {}, ["markov_rank 4", "is missing"]),
        ({**SPECULATORS, "speculators_model_type": "dspark"}, {}, ["markov_rank 256", "is missing"]),
        ({**SPECULATORS, "markov_rank": 4}, MARKOV, ["markov_rank", "only DSpark heads have"]),
        (
            {**without("sample_from_anchor", SPECULATORS), "architectures": ["DSparkDraftModel"]}, {},
            ["the type dflash", "the class of a DSpark head", "--rows"],
        ),
        (
            {**without("sample_from_anchor", SPECULATORS), "speculators_model_type": "dspark", **DSPARK,
             "speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]}},
            MARKOV | CONFIDENCE, ["draft 7 tokens of blocks of 4", "--rows"],
        ),
        # others with DFlash's tensors
        (nested(conv_kernel_size=2, selector_rank=4), {}, ["DFlash2"]),
        (nested(conv_kernel_size=2, lilicorr_enabled=True), {}, ["LiLiCorr"]),
        ({**SPECULATORS, "speculators_model_type": "dflash2"}, {}, ["DFlash2"]),
        (OFFICIAL, {"candidate_selector.successor_codebook": ONES(VOCABULARY, 4)}, ["DFlash2"]),
        (OFFICIAL, {"layers.0.mlp_conv.base_kernel": ONES(2, 2, WIDTH)}, ["DFlash2"]),
        ({**OFFICIAL, "architectures": ["DominoDraftModel"]}, {}, ["Domino"]),
        (nested(projector_type="domino"), {}, ["Domino"]),
        (OFFICIAL, {"prefix_gru.weight_ih_l0": ONES(3, 4)}, ["Domino"]),
        ({**nested(causal_head=True), "is_causal": False}, {}, ["is_causal False and causal_head True"]),
        (nested(causal=True, causal_head=False), {}, ["contradicts itself", "causal True", "causal_head False"]),
        ({**OFFICIAL, "is_causal": "yes"}, {}, ["true or false as 'is_causal'"]),
        ({**SPECULATORS, "is_causal": True}, {}, ["'is_causal' to True", "sliding_window_non_causal"]),
        (nested(use_swa=True, swa_window_size=8), {}, ["'use_swa' to True"]),
        (nested(use_swa=False, swa_window_size=8), {}, ["'swa_window_size'", "which is unknown here"]),
        (nested(projector_type="other"), {}, ["'projector_type' to 'other'"]),
        (OFFICIAL, {"mask_embedding": ONES(WIDTH)}, ["mask_embedding", "is not part of this model"]),
        ({**OFFICIAL, "input_embedding_scale": 4.0}, {}, ["'input_embedding_scale' to 4.0"]),
        ({**OFFICIAL, "final_logit_softcapping": 30.0}, {}, ["'final_logit_softcapping'"]),
        ({**OFFICIAL, "is_neox_style": False}, {}, ["'is_neox_style' to False"]),
        *(
            (
                {**OFFICIAL, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2, "use_sliding_window": used},
                {}, ["'sliding_attention'", "use_sliding_window is not true"],
            )
            for used in (False, None, 0)
        ),
        ({**OFFICIAL, "model_type": "gemma3_text"}, {}, ["model_type 'gemma3_text'"]),
        ({**OFFICIAL, "architectures": ["OtherDraftModel"]}, {}, ["architectures ['OtherDraftModel']"]),
        # settings at two places, and values of wrong types
        ({**nested(block_size=8), "block_size": BLOCK}, {}, ["block_size twice", "4", "8"]),
        ({**OFFICIAL, "target_layer_ids": [1, 4]}, {}, ["target_layer_ids twice"]),
        ({**OFFICIAL, "aux_hidden_state_layer_ids": [2, 6]}, {}, ["aux_hidden_state_layer_ids, unlike"]),
        ({**SPECULATORS, "target_layer_ids": [1, 5]}, {}, ["target_layer_ids, unlike"]),
        ({**SPECULATORS, "rope_theta": 5e5}, {}, ["rope_theta twice"]),
        ({**SPECULATORS, "quantization_config": {}}, {}, ["'quantization_config'", "which is unknown here"]),
        ({**OFFICIAL, "rope_parameters": {"rope_theta": 5e5}}, {}, ["rope_theta twice"]),
        (
            {**OFFICIAL, "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}},
            {},
            ["rope_type twice"],
        ),
        (nested(mask_token_id=str(MASK)), {}, ["a whole number as 'mask_token_id'"]),
        (nested(sample_from_anchor=0), {}, ["true or false as 'sample_from_anchor'"]),
        ({**OFFICIAL, "architectures": "DFlashDraftModel", "dflash_config": [NESTED]}, {}, ["an object as"]),
        ({**OFFICIAL, "architectures": [3, None]}, {}, ["architectures [3]"]),
        (OFFICIAL, {"hidden_norm.weight": None}, ["hidden_norm.weight", "is missing"]),
        (OFFICIAL, {"fc.weight": None}, ["fc.weight", "is missing"]),
        (OFFICIAL, {"layers.1.self_attn.q_norm.weight": None}, ["layers.1.self_attn.q_norm", "is missing"]),
        (OFFICIAL, {"layers.2.input_layernorm.weight": WIDE}, ["layers.2.input_layernorm", "is not part"]),
        (OFFICIAL, {"fc.bias": WIDE}, ["fc.bias", "is not part of this model"]),
        (OFFICIAL, {"fc.weight": ONES(WIDTH, 3 * WIDTH)}, ["has 96 inputs", "2 layers of width 32", "--taps"]),
        (OFFICIAL, {"fc.weight": ONES(WIDTH, 80)}, ["has 80 inputs", "the files are incomplete"]),
        (OFFICIAL, {"lm_head.weight": ONES(DRAFTED, WIDTH)}, ["d2t is missing", "the 40 of 96 tokens"]),
        (OFFICIAL, {"lm_head.weight": ONES(DRAFTED, WIDTH), **maps(ids()[::-1].copy())}, ["do not ascend"]),
        (OFFICIAL, maps(ids()), ["d2t", f"[{DRAFTED}]", f"[{VOCABULARY}]"]),
        ({**OFFICIAL, "rope_theta": None}, {}, ["gives no rope_theta", "disagree"]),
        ({**OFFICIAL, "block_size": None}, {}, ["gives no block_size"]),
        ({**OFFICIAL, "block_size": 1}, {}, ["block must be at least 2"]),
        ({**OFFICIAL, "dflash_config": WITHOUT}, {}, ["gives no mask_token_id"]),
        (nested(target_layer_ids="1"), {}, ["must list numbers"]),
        (nested(target_layer_ids=[1]), {}, ["has 64 inputs", "1 layers of width 32 are"]),
        ({**OFFICIAL, "layer_types": ["full_attention", "sliding_attention"]}, {}, ["layer_types 'sliding_attention'"]),
        ({**OFFICIAL, "sliding_window": 2048, "layer_types": None, "use_sliding_window": None}, {}, ["sliding-window"]),
        ({**OFFICIAL, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, ["rope type 'yarn'"]),
        ({**SPECULATORS, "aux_hidden_state_layer_ids": None}, {}, ["has no aux_hidden_state_layer_ids", "--taps"]),
        ({**SPECULATORS, "mask_token_id": None}, {}, ["gives no mask_token_id"]),
        ({**SPECULATORS, "target_hidden_size": 64}, {}, ["target_hidden_size 64", "as wide as their target"]),
        ({**OFFICIAL, "num_target_layers": []}, {}, ["a whole number above 0 as 'num_target_layers'", "it has []"]),
        ({**SPECULATORS, "draft_vocab_size": 40}, {}, ["draft_vocab_size 40", "lm_head.weight is missing"]),
        (without("speculators_model_type", SPECULATORS), {}, ["speculators_model_type None", "of dspark, dflash"]),
        ({**SPECULATORS, "transformer_layer_config": None}, {}, ["'transformer_layer_config'"]),
    ],
)  # fmt: skip
def test_heads_with_the_tensors_of_dflash(config: dict, more: dict, words: list[str], tmp_path: Path):
    sentence = said(write(tmp_path / "head", dflash() | more, config))
    assert all(word in sentence for word in words), sentence


MEANING_ANOTHER = {
    "use_aux_hidden_state": False, "use_input_layernorm_in_first_layer": False, "use_last_layernorm": False,
    "use_mtp_layernorm": True, "next_layer_regular": False, "parallel_draft_step": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        *(
            ({"eagle_config": {**MODEL_OPTIMIZER, key: other}}, {}, [f"'{key}' to {other!r}"])
            for key, other in MEANING_ANOTHER.items()
        ),
        ({"eagle_config": {"use_aux_hidden_state": "true"}}, {}, ["'use_aux_hidden_state' to 'true'"]),
        ({"eagle_config": {"pre_norm": False}}, {}, ["'pre_norm'", "which is unknown here"]),
        ({"eagle_config": {"draft_vocab_size": 7}}, {}, ["'draft_vocab_size'", "which is unknown here"]),
        ({"norm_before_fc": False, "eagle_config": {"norm_before_fc": True}}, {}, ["norm_before_fc twice"]),
        ({"architectures": ["Qwen3NextForCausalLM"]}, {}, ["architectures ['Qwen3NextForCausalLM']"]),
        ({"architectures": ["LlamaForCausalLMEagle"]}, {}, ["config of a head of EAGLE-1", "tensors of an EAGLE-3"]),
        ({"dflash_config": NESTED, "architectures": None}, {}, ["config of a DFlash head", "tensors of an EAGLE-3"]),
        ({"architectures": ["Gemma4Eagle3Model"]}, {}, ["Gemma"]),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, {}, ["DeepSeek"]),
        ({"architectures": ["PEagleDraftModel"]}, {}, ["P-EAGLE"]),
        ({"parallel_drafting": True}, {}, ["P-EAGLE"]),
        ({}, {"mask_hidden": ONES(1, 1, 3 * WIDTH)}, ["P-EAGLE"]),
        ({}, {"mtp.fc.weight": ONES(WIDTH, 2 * WIDTH)}, ["MTP"]),
        ({"speculators_model_type": "mtp"}, {}, ["MTP"]),
        ({"model_type": "qwen3_next"}, {}, ["model_type 'qwen3_next'"]),
        ({"model_type": ["llama"]}, {}, ["model_type ['llama']"]),
        ({"is_causal": False}, {}, ["'is_causal' to False"]),
        ({"target_hidden_size": 64}, {}, ["embed_tokens.weight is missing", "width 32 for a target of width 64"]),
        ({"target_hidden_size": "64"}, {}, ["a whole number above 0 as 'target_hidden_size'"]),
        ({"target_hidden_size": 64}, {"embed_tokens.weight": ONES(VOCABULARY, WIDTH)}, ["96 inputs", "width 64"]),
        ({"target_layer_ids": [1, 3, 4]}, {}, ["target_layer_ids if it is DeepSpec's"]),
        ({"architectures": ["Qwen3Eagle3Model"]}, {}, ["target_layer_ids if it is DeepSpec's"]),
        ({}, {"t2d": 2 * np.ones(VOCABULARY, np.uint8)}, ["t2d", "not all 0 or 1"]),
        ({}, {NORM: None}, [NORM, "is missing"]),
        ({}, {"fc.weight": None}, ["fc.weight", "is missing"]),
        ({}, {"lm_head.weight": None}, ["lm_head.weight", "is missing"]),
        ({}, {"fc.bias": WIDE}, ["fc.bias", "is not part of this model"]),
        ({}, {"fc.weight": ONES(WIDTH, 2 * WIDTH)}, ["has 64 inputs", "3 layers of width 32 are named", "--taps"]),
        ({}, {"fc_norm.0.weight": WIDE}, ["fc_norm.0.weight", "is not part of this model"]),
        ({}, {NORM: np.ones(WIDTH, np.int8)}, [NORM, "I8"]),
        ({}, {"midlayer.self_attn.q_norm.weight": WIDE[: WIDTH // HEADS]}, ["midlayer.self_attn.k_norm", "is missing"]),
        ({}, {"layers.1.self_attn.q_proj.weight": WIDE}, ["layers.1.self_attn.q_proj.weight", "has one layer"]),
        ({}, {"model.norm.weight": WIDE, "model.midlayer.self_attn.q_proj.weight": WIDE}, ["is twice in"]),
        ({}, {"d2t": None}, ["d2t is missing", f"the {DRAFTED} of {VOCABULARY} tokens"]),
        ({}, {"d2t": np.zeros(DRAFTED, np.int64), "t2d": np.ones(VOCABULARY, bool)}, ["0 everywhere", "never filled"]),
        ({}, {"d2t": np.zeros(DRAFTED, np.int64), "t2d": None}, ["0 everywhere", "never filled"]),
        ({}, {"d2t": np.zeros(DRAFTED, np.int64)}, ["d2t and t2d", "name different tokens"]),
        ({}, {"t2d": np.ones(VOCABULARY, bool)}, ["d2t and t2d", f"({DRAFTED} and {VOCABULARY})"]),
        ({}, {"d2t": TWISTED}, ["gives ids that do not ascend"]),
        ({}, {"d2t": maps(ids())["d2t"] + 50}, ["the target's ids go from 0 to 95"]),
        ({}, {"d2t": maps(ids())["d2t"].astype(np.float16)}, ["d2t", "float16", "whole numbers"]),
        ({}, {"t2d": ONES(VOCABULARY)}, ["t2d", "float32", "truth values"]),
        ({}, {"d2t": np.ones(3, np.int64)}, ["d2t", "[3]", "[40]"]),
        ({}, {"t2d": np.ones(3, bool)}, ["t2d", "[3]", "[96]"]),
        ({}, {"lm_head.weight": ONES(97, WIDTH)}, ["draft_vocab_size 40", "97 rows"]),
        ({"sliding_window": 2048}, {}, ["sliding-window attention (sliding_window 2048)"]),
        ({"layer_types": ["sliding_attention"]}, {}, ["'sliding_window'", "None"]),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 8},
            {},
            ["whose window only speculators and vLLM compute"],
        ),
        ({"post_norm": False}, {}, ["'post_norm'", "which is unknown here"]),
        ({"eagle_config": 3}, {}, ["an object as 'eagle_config'"]),
        ({"fc_norm": "each"}, {}, ["true or false as 'fc_norm'"]),
        ({"norm_before_fc": True, "fc_norm": True}, {}, ["exclude each other"]),
        ({"norm_before_fc": True}, {}, ["input_norm.weight is missing"]),
        ({"draft_vocab_size": 41}, {}, ["draft_vocab_size 41", "40 rows"]),
        ({"vocab_size": 97}, {}, ["t2d", "[96]", "[97]"]),
        ({LISTED: [1, 2, 3], "eagle_config": {LISTED: [1, 2, 3]}}, {}, [LISTED, "twice", "--taps"]),
        ({LISTED: [1, 2]}, {}, ["has 96 inputs", "2 layers of width 32 are named", "--taps"]),
        ({LISTED: "1,2,3"}, {}, ["must list numbers of layers"]),
        ({LISTED: [5, 2, 4]}, {}, ["[5, 2, 4]", "ascending order", "--taps"]),
        ({}, {"lm_head.weight": np.array(1, np.float32)}, ["lm_head.weight", "must be a matrix"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, {}, ["rope type 'yarn'"]),
        ({"speculators_model_type": "eagle3"}, {}, ["'transformer_layer_config'"]),
        ({"speculators_model_type": "peagle"}, {}, ["P-EAGLE's head"]),
        ({"speculators_model_type": "mlp", "architectures": ["Eagle3DraftModel"]}, {}, ["type 'mlp'", "of eagle3"]),
    ],
)
def test_heads_with_the_tensors_of_eagle3(config: dict, more: dict, words: list[str], tmp_path: Path):
    config = {**EAGLE3, **config}
    sentence = said(write(tmp_path / "head", eagle3() | more, config))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        ({"bias": False}, {}, ["'bias' to False", "files have True"]),
        ({"sliding_window": 64}, {}, ["sliding-window attention (sliding_window 64)"]),
        ({"truncated_vocab_size": 40}, {}, ["'truncated_vocab_size' to 40"]),
        ({"draft_vocab_size": 40}, {}, ["'draft_vocab_size'", "which is unknown here"]),
        ({"model_type": "eagle", "model": EAGLE, "eagle_fc_bias": False}, {}, ["'eagle_fc_bias' to False"]),
        ({"speculators_model_type": "eagle"}, {}, ["speculators format of the kind 'eagle'"]),
        ({}, {EAGLE_NORM: None}, [EAGLE_NORM, "is missing"]),
        ({}, {"fc.weight": None}, ["fc.weight", "is missing"]),
        ({}, {"embed_tokens.weight": None}, ["embed_tokens.weight", "is missing"]),
        ({}, {"lm_head.weight": ONES(96, WIDTH)}, ["lm_head.weight", "is not part of this model"]),
        ({}, {"norm.weight": ONES(WIDTH)}, ["norm.weight", "is not part of this model"]),
        ({}, {"layers.0.input_layernorm.weight": ONES(WIDTH)}, ["input_layernorm", "is not part"]),
        ({}, {"layers.0.self_attn.q_proj.bias": ONES(WIDTH)}, ["k_proj.bias", "is missing"]),
        ({}, {"model.fc.bias": ONES(WIDTH)}, ["model.fc.bias", "is not part of this model"]),
        ({}, {EAGLE_NORM: ONES(31)}, [EAGLE_NORM, "[31]", "[32]"]),
        ({}, {"fc.bias": ONES(2)}, ["fc.bias", "[2]", "[32]"]),
        ({}, {EAGLE_NORM: np.ones(WIDTH, np.int8)}, [EAGLE_NORM, "I8"]),
        ({"num_hidden_layers": 2}, {}, ["num_hidden_layers 2", "an EAGLE head has one layer"]),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 6, "use_sliding_window": True},
            {}, ["layer_types 'sliding_attention'", "in other heads only"],
        ),
        ({"hidden_act": "gelu"}, {}, ["hidden_act 'gelu'"]),
        ({"quantization_config": {"quant_method": "awq"}}, {}, ["quantization_config: awq"]),
        ({"qkv_bias": True}, {}, ["k_proj.bias", "is missing"]),
        ({"intermediate_size": 40}, {}, ["mlp.", "48", "40"]),
        ({"hidden_size": None}, {}, ["'hidden_size'"]),
    ],
)  # fmt: skip
def test_heads_with_the_tensors_of_eagle(config: dict, more: dict, words: list[str], target: Path, tmp_path: Path):
    sentence = said(write(tmp_path / "head", eagle(target / "hf") | more, {**EAGLE, **config}))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        ({"medusa_num_layers": 2}, {}, ["'medusa_num_layers' to 2"]),
        ({"hydra_num_heads": 4}, {}, ["'hydra_num_heads'"]),
        ({}, {"1.0.linear.weight": None, "1.0.linear.bias": None, "1.1.weight": None}, ["1.0.linear.bias", "missing"]),
        ({}, {"0.1.weight": None}, ["0.1.weight", "is missing"]),
        ({}, {f"{i}.1.weight": None for i in range(MEDUSA_HEADS)}, ["only residual blocks"]),
        ({}, {"2.1.weight": ONES(5, WIDTH)}, ["2.1.weight", "[5, 32]", "[96, 32]"]),
        ({}, {"0.1.bias": ONES(VOCABULARY)}, ["0.1.bias", "is not part of this model"]),
        ({}, {"0.0.linear.bias": np.ones(WIDTH, np.int8)}, ["0.0.linear.bias", "I8"]),
        ({}, {"0.1.linear.weight": ONES(WIDTH, WIDTH)}, ["0.1.linear.weight", "is not part of this model"]),
        ({"medusa_num_heads": 5}, {}, ["medusa_num_heads 5", "the files hold 3"]),
        ({"medusa_num_heads": "five"}, {}, ["medusa_num_heads five", "the files hold 3"]),
        ({}, dict.fromkeys(medusa()) | {"x": ONES(1)}, ["the files hold 0"]),
        ({}, {"0.1.weight": ONES(0, 0)}, ["0.1.weight", "[0, 0]"]),
        ({}, {"2000000000.1.weight": ONES(5, WIDTH)}, ["3.0.linear.bias is missing", "head 2000000000"]),
    ],
)  # fmt: skip
def test_heads_with_the_tensors_of_medusa(config: dict, more: dict, words: list[str], tmp_path: Path):
    source = write(tmp_path / "head", medusa() | more, {**MEDUSA, **config}, "medusa_lm_head.safetensors")
    sentence = said(source)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"model.layers.0.input_layernorm.weight": WIDE}, "use `jaxspec-convert llama`"),
        ({"wte.weight": ONES(3)}, "no head of a known kind"),
    ],
)
def test_what_is_no_head(found: dict, words: str, tmp_path: Path):
    assert words in said(write(tmp_path / "head", found, EAGLE))


def test_a_head_is_no_model(target: Path, tmp_path: Path):
    for name, tensors, config in (
        ("dflash", dflash(), OFFICIAL),
        ("eagle", eagle(target / "hf"), EAGLE),
        ("medusa", medusa(), {"medusa_num_heads": MEDUSA_HEADS}),
    ):
        file = "medusa_lm_head.safetensors" if name == "medusa" else "model.safetensors"
        with pytest.raises(
            CheckpointError, match=rf"holds a draft head \({name}\) and no model; use `jaxspec-convert head`"
        ):
            llama.plan(write(tmp_path / name, tensors, config, file))


def test_of_two_files_the_one_that_is_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write(tmp_path / "head", dflash(), OFFICIAL)
    (source / "pytorch_model.bin").write_bytes(b"")
    heads.plan(source)
    assert "holds both model.safetensors and pytorch_model.bin; only the first is read" in capsys.readouterr().err


def test_kinds_are_told_apart_by_their_tensors(tmp_path: Path):
    """The config does not mention DFlash."""
    assert "gives no block_size" in said(write(tmp_path / "head", dflash(), without("model_type", DFLASH_SHAPE)))


def test_naming_the_taps_does_not_name_the_rows(tmp_path: Path):
    config = {**FLAT, "architectures": ["DFlashDraftModel"]}
    source = write(tmp_path / "head", dflash() | TABLES, config)
    assert "sample_from_anchor" in said(source, taps=[2, 6])


def test_nothing_is_written(tmp_path: Path):
    source = write(tmp_path / "head", dflash() | TABLES, {**DEEPSPEC, "architectures": ["Gemma4DSparkModel"]})
    assert "Gemma" in refused(source, tmp_path / "out", "--target", "builtin", command="head")
