"""Heads with the tensors of one kind and the meaning of another: what is read, and what is refused by name.

The cases are those of DeepSpec, SpecForge, speculators, JetSpec, Model Optimizer and others, whose heads differ in keys
of config.json rather than in tensors.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import heads
from tests import hf_models
from tests.convert import dflash_heads, eagle3_heads, eagle_heads, test_medusa
from tests.convert.commands import refused
from tests.convert.dflash_heads import BLOCK, MASK, SHAPE
from tests.convert.eagle3_heads import DRAFTED, MODEL_OPTIMIZER
from tests.convert.eagle_heads import VOCABULARY, WIDTH
from tests.convert.test_fuzz import STRANGE

ONES = lambda *shape: np.ones(shape, np.float32)
TABLES = {"embed_tokens.weight": ONES(VOCABULARY, WIDTH), "lm_head.weight": ONES(VOCABULARY, WIDTH)}
MARKOV = {"markov_head.markov_w1.weight": ONES(VOCABULARY, 4), "markov_head.markov_w2.weight": ONES(VOCABULARY, 4)}
CONFIDENCE = {"confidence_head.proj.weight": ONES(1, WIDTH + 4), "confidence_head.proj.bias": ONES(1)}
FLAT = {
    **SHAPE, "block_size": BLOCK, "num_target_layers": 8, "mask_token_id": MASK, "target_layer_ids": [1, 5],
    "num_anchors": 8, "markov_rank": 0, "enable_confidence_head": False, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSPEC = {**FLAT, "architectures": ["Qwen3DSparkModel"]}
DSPARK = {
    "markov_rank": 4, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
OFFICIAL, SPECULATORS = dflash_heads.OFFICIAL, dflash_heads.SPECULATORS
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
        (DEEPSPEC, TABLES, ["anchor rows", "DeepSpec"]),
        ({**DEEPSPEC, "target_layer_ids": [-1, 4]}, TABLES, ["anchor rows"]),
        ({**DEEPSPEC, "target_layer_ids": [1, 7]}, TABLES, ["anchor rows"]),
        (without("mask_token_id", DEEPSPEC), TABLES, ["anchor rows"]),
        ({**DEEPSPEC, "architectures": ["Gemma4DSparkModel"]}, TABLES, ["Gemma"]),
        ({**FLAT, "architectures": ["DFlashDraftModel"]}, TABLES, ["sample_from_anchor"]),
        ({**FLAT, "architectures": ["DFlashDraftModel"], "sample_from_anchor": True}, TABLES, ["anchor rows"]),
        (FLAT, {}, ["sample_from_anchor"]),
        (nested(shift_label=True), {}, ["anchor rows"]),
        # DSpark, by DeepSpec, SpecForge, Model Optimizer and speculators
        ({**DEEPSPEC, **DSPARK}, {**TABLES, **MARKOV, **CONFIDENCE}, ["DSpark"]),
        (
            {**nested(projector_type="dspark", attention_mode="gqa", **DSPARK), "architectures": ["DSparkDraftModel"]},
            {f"logit_head.{name}": array for name, array in (MARKOV | CONFIDENCE).items()},
            ["DSpark"],
        ),
        ({**DEEPSPEC, **DSPARK, "markov_head_type": "gated"}, {"markov_head.gate_proj.bias": ONES(4)}, ["DSpark"]),
        (DEEPSPEC, MARKOV | CONFIDENCE, ["DSpark"]),
        ({**DEEPSPEC, "markov_rank": 4}, {}, ["DSpark"]),
        ({**DEEPSPEC, "markov_rank": 4, "dflash_config": {"markov_rank": 8}}, MARKOV, ["DSpark"]),
        (OFFICIAL, {"markov_w1.weight": ONES(VOCABULARY, 4)}, ["DSpark"]),
        (OFFICIAL, {"confidence_proj.weight": ONES(1, WIDTH)}, ["DSpark"]),
        (nested(use_confidence_head=True), {}, ["DSpark"]),
        ({**OFFICIAL, "dspark_config": {"markov_rank": 4}}, {}, ["DSpark"]),
        ({**SPECULATORS, "speculators_model_type": "dspark"}, {}, ["DSpark"]),
        # others with DFlash's tensors
        (nested(conv_kernel_size=2, selector_rank=4), {}, ["DFlash2"]),
        ({**SPECULATORS, "speculators_model_type": "dflash2"}, {}, ["DFlash2"]),
        (OFFICIAL, {"candidate_selector.successor_codebook": ONES(VOCABULARY, 4)}, ["DFlash2"]),
        (OFFICIAL, {"layers.0.mlp_conv.base_kernel": ONES(2, 2, WIDTH)}, ["DFlash2"]),
        ({**OFFICIAL, "architectures": ["DominoDraftModel"]}, {}, ["Domino"]),
        (nested(projector_type="domino"), {}, ["Domino"]),
        (OFFICIAL, {"prefix_gru.weight_ih_l0": ONES(3, 4)}, ["Domino"]),
        (nested(causal=True), {}, ["'causal' to True"]),
        (nested(causal_head=True), {}, ["'causal_head' to True"]),
        ({**OFFICIAL, "is_causal": True}, {}, ["'is_causal' to True"]),
        (nested(causal=True, is_causal=False), {}, ["'causal' to True"]),
        (nested(use_swa=True, swa_window_size=8), {}, ["'use_swa' to True"]),
        (nested(use_swa=False, swa_window_size=8), {}, ["'swa_window_size'", "does not know"]),
        (nested(projector_type="other"), {}, ["'projector_type' to 'other'"]),
        (OFFICIAL, {"mask_embedding": ONES(WIDTH)}, ["mask_embedding", "is not part of this model"]),
        ({**OFFICIAL, "input_embedding_scale": 4.0}, {}, ["'input_embedding_scale' to 4.0"]),
        ({**OFFICIAL, "final_logit_softcapping": 30.0}, {}, ["'final_logit_softcapping'"]),
        ({**OFFICIAL, "is_neox_style": False}, {}, ["'is_neox_style' to False"]),
        ({**OFFICIAL, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, {}, ["'sliding_attention'"]),
        ({**OFFICIAL, "model_type": "gemma3_text"}, {}, ["model_type 'gemma3_text'"]),
        ({**OFFICIAL, "architectures": ["OtherDraftModel"]}, {}, ["architectures ['OtherDraftModel']"]),
        # settings at two places, and values of wrong types
        ({**nested(block_size=8), "block_size": BLOCK}, {}, ["block_size twice", "4", "8"]),
        ({**OFFICIAL, "target_layer_ids": [1, 4]}, {}, ["target_layer_ids twice"]),
        ({**OFFICIAL, "aux_hidden_state_layer_ids": [2, 6]}, {}, ["aux_hidden_state_layer_ids, unlike"]),
        ({**SPECULATORS, "target_layer_ids": [1, 5]}, {}, ["target_layer_ids, unlike"]),
        ({**SPECULATORS, "rope_theta": 5e5}, {}, ["rope_theta twice"]),
        ({**SPECULATORS, "quantization_config": {}}, {}, ["'quantization_config'", "does not know"]),
        ({**OFFICIAL, "rope_parameters": {"rope_theta": 5e5}}, {}, ["rope_theta twice"]),
        (
            {**OFFICIAL, "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}},
            {},
            ["rope_type twice"],
        ),
        ({**OFFICIAL, "block_size": [4]}, {}, ["a whole number as 'block_size'"]),
        (nested(mask_token_id=str(MASK)), {}, ["a whole number as 'mask_token_id'"]),
        (nested(target_layer_ids=[[1, 5]]), {}, ["must list numbers of layers"]),
        (nested(sample_from_anchor=0), {}, ["'sample_from_anchor' to 0"]),
        ({**OFFICIAL, "architectures": "DFlashDraftModel", "dflash_config": [NESTED]}, {}, ["an object as"]),
        ({**OFFICIAL, "architectures": [3, None]}, {}, ["architectures [3]"]),
    ],
)  # fmt: skip
def test_heads_with_the_tensors_of_dflash(config: dict, more: dict, words: list[str], tmp_path: Path):
    sentence = said(dflash_heads.write(tmp_path / "head", dflash_heads.weights() | more, config))
    assert all(word in sentence for word in words), sentence


MEANING_ANOTHER = {
    "use_aux_hidden_state": False,
    "use_input_layernorm_in_first_layer": False,
    "use_last_layernorm": False,
    "use_mtp_layernorm": True,
    "next_layer_regular": False,
    "parallel_draft_step": 4,
}


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        *(
            ({"eagle_config": {**MODEL_OPTIMIZER, key: other}}, {}, [f"'{key}' to {other!r}"])
            for key, other in MEANING_ANOTHER.items()
        ),
        ({"use_aux_hidden_state": False}, {}, ["'use_aux_hidden_state' to False"]),
        ({"eagle_config": {"use_aux_hidden_state": "true"}}, {}, ["'use_aux_hidden_state' to 'true'"]),
        ({"eagle_config": {"pre_norm": False}}, {}, ["'pre_norm'", "does not know"]),
        ({"eagle_config": {"draft_vocab_size": 7}}, {}, ["'draft_vocab_size'", "does not know"]),
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
        ({"target_hidden_size": 64}, {}, ["target_hidden_size 64", "as wide as their target"]),
        ({"target_hidden_size": 0}, {}, ["target_hidden_size 0"]),
        ({"target_layer_ids": [1, 3, 4]}, {}, ["target_layer_ids if it is DeepSpec's"]),
        ({"architectures": ["Qwen3Eagle3Model"]}, {}, ["target_layer_ids if it is DeepSpec's"]),
        ({}, {"t2d": 2 * np.ones(VOCABULARY, np.uint8)}, ["t2d", "not all 0 or 1"]),
    ],
)
def test_heads_with_the_tensors_of_eagle3(config: dict, more: dict, words: list[str], tmp_path: Path):
    config = {**eagle3_heads.OFFICIAL, **config}
    sentence = said(eagle3_heads.write(tmp_path / "head", eagle3_heads.weights() | more, config))
    assert all(word in sentence for word in words), sentence


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What heads of EAGLE-1 repeat."""
    hf_models.make("llama", tmp_path_factory.getbasetemp() / "kinds", num_hidden_layers=1)
    return tmp_path_factory.getbasetemp() / "kinds"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bias": False}, ["'bias' to False", "files have True"]),
        ({"sliding_window": 64}, ["sliding-window attention (sliding_window 64)"]),
        ({"truncated_vocab_size": 40}, ["'truncated_vocab_size' to 40"]),
        ({"draft_vocab_size": 40}, ["'draft_vocab_size'", "does not know"]),
        ({"model_type": "eagle", "model": eagle_heads.CONFIG, "eagle_fc_bias": False}, ["'eagle_fc_bias' to False"]),
    ],
)
def test_heads_with_the_tensors_of_eagle(config: dict, words: list[str], target: Path, tmp_path: Path):
    source = eagle_heads.write(tmp_path / "head", eagle_heads.weights(target), {**eagle_heads.CONFIG, **config})
    sentence = said(source)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("medusa_num_layers", 2, "'medusa_num_layers' to 2"), ("hydra_num_heads", 4, "'hydra_num_heads'")],
)
def test_heads_with_the_tensors_of_medusa(key: str, value: int, words: str, tmp_path: Path):
    source = test_medusa.write(tmp_path / "head", test_medusa.weights())
    (source / "config.json").write_text(json.dumps({**test_medusa.CONFIG, key: value}))
    assert words in said(source)


def test_naming_the_taps_does_not_name_the_rows(tmp_path: Path):
    config = {**FLAT, "architectures": ["DFlashDraftModel"]}
    source = dflash_heads.write(tmp_path / "head", dflash_heads.weights() | TABLES, config)
    assert "sample_from_anchor" in said(source, taps=[2, 6])


def test_nothing_is_written(tmp_path: Path):
    source = dflash_heads.write(tmp_path / "head", dflash_heads.weights() | TABLES, DEEPSPEC)
    assert "anchor rows" in refused(source, tmp_path / "out", "--target", "builtin", command="head")


def shape_of(plan: Any) -> dict[str, Any]:
    """What a head computes, without its reasons and the places of its tensors."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    values["tensors"] = {ours: (tensor.name, tensor.shape) for ours, tensor in plan.tensors.items()}
    values["taps"] = plan.taps and plan.taps.layers
    return {name: value for name, value in values.items() if name not in ("published", "target_layers", "layout")}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "bool"])
def test_truth_values_of_any_dtype(dtype: str, tmp_path: Path):
    found = eagle3_heads.weights()
    plain = eagle3_heads.write(tmp_path / "plain", found)
    other = eagle3_heads.write(tmp_path / "head", found | {"t2d": found["t2d"].astype(dtype)})
    assert shape_of(heads.plan(plain)) == shape_of(heads.plan(other))


@pytest.mark.parametrize(
    "config",
    [
        {"eagle_config": {**MODEL_OPTIMIZER, "eagle_aux_hidden_state_layer_ids": []}, "target_hidden_size": None},
        {"architectures": ["LlamaForCausalLMEagle3"], **MODEL_OPTIMIZER},
        {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3", "sliding_window": None},
        {"is_causal": True, "norm_before_fc": None, "eagle_config": {"norm_before_fc": False, "fc_norm": None}},
        {"rope_theta": 10000, "rope_scaling": {"rope_type": "default", "rope_theta": 10000}, "num_experts": 8},
        {"architectures": None, "torch_dtype": None, "id2label": {"0": "x"}, "pruned_heads": {}},
    ],
)
def test_settings_at_their_defaults(config: dict[str, Any], tmp_path: Path):
    plain = eagle3_heads.write(tmp_path / "plain", eagle3_heads.weights())
    source = eagle3_heads.write(tmp_path / "head", eagle3_heads.weights(), {**eagle3_heads.OFFICIAL, **config})
    assert shape_of(heads.plan(source)) == shape_of(heads.plan(plain))


@pytest.mark.parametrize(
    "config",
    [
        nested(causal=False, causal_head=False, is_causal=False, projector_type="dflash", use_swa=False),
        nested(markov_rank=0, enable_confidence_head=False, shift_label=False, sample_from_anchor=False),
        {**OFFICIAL, "is_causal": False, "architectures": ["Qwen3DFlashDraftModel"]},
        {**FLAT, "architectures": ["DFlashDraftModel"], "sample_from_anchor": False},
        {**SPECULATORS, "sliding_window_non_causal": True, "speculators_config": {"algorithm": "dflash"}},
    ],
)
def test_settings_of_dflash_at_their_defaults(config: dict[str, Any], tmp_path: Path):
    found, plain = dflash_heads.weights(), dflash_heads.write(tmp_path / "plain", dflash_heads.weights())
    source = dflash_heads.write(tmp_path / "head", found, config)
    assert shape_of(heads.plan(source))["taps"] == (2, 6)
    assert shape_of(heads.plan(source)) == shape_of(heads.plan(plain))


HEADS: dict[str, tuple[Callable[[Path], Path], dict[str, Any], dict[str, Any]]] = {
    # how to write it with a config, that config, and the settings that have one right value
    "eagle3": (lambda path: eagle3_heads.write(path, eagle3_heads.weights()), eagle3_heads.OFFICIAL, {
        **{key: value for key, value in MODEL_OPTIMIZER.items() if value is not None}, "is_causal": True,
    }),
    "eagle3 speculators": (
        lambda path: eagle3_heads.write(path, eagle3_heads.weights(layer="layers.0")), eagle3_heads.SPECULATORS,
        {"use_aux_hidden_state": True, "draft_vocab_size": DRAFTED, "is_neox_style": True},
    ),
    "dflash": (lambda path: dflash_heads.write(path, dflash_heads.weights()), OFFICIAL, {
        "is_causal": False, "causal": False, "causal_head": False, "use_swa": False,
        "input_embedding_scale": 1.0, "markov_rank": 0, "shift_label": False, "sample_from_anchor": False,
    }),
    "dflash speculators": (lambda path: dflash_heads.write(path, dflash_heads.weights()), SPECULATORS, {
        "sample_from_anchor": False, "is_causal": False, "enable_confidence_head": False, "output_multiplier": 1,
    }),
    "medusa": (lambda path: test_medusa.write(path, test_medusa.weights()), test_medusa.CONFIG, {
        "medusa_num_layers": 1,
    }),
}  # fmt: skip


def with_config(write: Callable[[Path], Path], folder: Path, config: dict[str, Any]) -> Path:
    """A head with this config. Its tensors are written once."""
    source = folder if folder.exists() else write(folder)
    (source / "config.json").write_text(json.dumps(config))
    return source


HARMLESS = ("use_cache", "transformers_version", "id2label", "bos_token_id", "torch_dtype", "initializer_range")
SETTINGS = hypothesis.settings(
    max_examples=5, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.mark.parametrize("name", HEADS)
@SETTINGS
@hypothesis.given(data=st.data())
def test_odd_settings(name: str, data: st.DataObject, tmp_path: Path):
    """Known and at its default, without effect, or null: as without it. Any other: refused by its name."""
    write, config, fixed = HEADS[name]
    made, wrong = dict(config), set[str]()
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*fixed, *HARMLESS, "x"]))
        if key == "x":
            key = data.draw(st.text("abcdefgh_", min_size=4, max_size=9)) + "_x"
        value = data.draw(st.just(fixed[key]) | STRANGE if key in fixed else STRANGE)
        made[key] = value
        wrong.discard(key)
        same = key in fixed and value == fixed[key] and isinstance(value, bool) == isinstance(fixed[key], bool)
        if not (same or key in HARMLESS or value is None):
            wrong.add(key)
    source = with_config(write, tmp_path / "head", made)
    if not wrong:
        found = shape_of(heads.plan(source))
        assert found == shape_of(heads.plan(with_config(write, tmp_path / "head", config)))
        return
    sentence = said(source)
    assert any(key in sentence for key in wrong) or "does not read such heads yet" in sentence, sentence


@pytest.mark.parametrize("name", HEADS)
@SETTINGS
@hypothesis.given(data=st.data())
def test_odd_values_of_settings_that_are_read(name: str, data: st.DataObject, tmp_path: Path):
    """Whatever stands there, a head is read or one sentence says why not."""
    write, config, _ = HEADS[name]
    sections = [key for key, value in config.items() if isinstance(value, dict)]
    made = {key: dict(value) if key in sections else value for key, value in config.items()}
    place = data.draw(st.sampled_from([made, *(made[key] for key in sections)]))
    key = data.draw(st.sampled_from(sorted({*place, "architectures", "rope_parameters", "layer_types", "model_type"})))
    place[key] = data.draw(STRANGE | st.lists(STRANGE, max_size=2) | st.dictionaries(st.just("rope_type"), STRANGE))
    source = with_config(write, tmp_path / "head", made)
    sentence = ""
    try:
        heads.plan(source)
    except CheckpointError as error:
        sentence = str(error)
    assert "\n" not in sentence and len(sentence) < 1000
