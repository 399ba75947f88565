"""Settings in the configs of published heads: at their defaults, odd, or unknown."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.convert import heads
from tests.convert.published_heads import (
    DFLASH,
    DFLASH_SPECULATORS,
    DRAFTED,
    EAGLE3,
    KINDS,
    MODEL_OPTIMIZER,
    dflash,
    eagle3,
    write,
)
from tests.convert.test_fuzz import STRANGE
from tests.convert.test_kinds import FLAT, nested, said


def shape_of(plan: Any) -> dict[str, Any]:
    """What a head computes, without its reasons and the places of its tensors."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    values["tensors"] = {ours: (tensor.name, tensor.shape) for ours, tensor in plan.tensors.items()}
    values["taps"] = plan.taps and plan.taps.layers
    return {name: value for name, value in values.items() if name not in ("published", "config")}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "bool"])
def test_truth_values_of_any_dtype(dtype: str, tmp_path: Path):
    found = eagle3()
    plain = write(tmp_path / "plain", found, EAGLE3)
    other = write(tmp_path / "head", found | {"t2d": found["t2d"].astype(dtype)}, EAGLE3)
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
    plain = write(tmp_path / "plain", eagle3(), EAGLE3)
    source = write(tmp_path / "head", eagle3(), {**EAGLE3, **config})
    assert shape_of(heads.plan(source)) == shape_of(heads.plan(plain))


@pytest.mark.parametrize(
    "config",
    [
        nested(causal=False, causal_head=False, is_causal=False, projector_type="dflash", use_swa=False),
        nested(markov_rank=0, enable_confidence_head=False, shift_label=False, sample_from_anchor=False),
        {**DFLASH, "is_causal": False, "architectures": ["Qwen3DFlashDraftModel"]},
        {**FLAT, "architectures": ["DFlashDraftModel"], "sample_from_anchor": False},
        {**DFLASH_SPECULATORS, "sliding_window_non_causal": True, "speculators_config": {"algorithm": "dflash"}},
    ],
)
def test_settings_of_dflash_at_their_defaults(config: dict[str, Any], tmp_path: Path):
    found, plain = dflash(), write(tmp_path / "plain", dflash(), DFLASH)
    source = write(tmp_path / "head", found, config)
    assert shape_of(heads.plan(source))["taps"] == (2, 6)
    assert shape_of(heads.plan(source)) == shape_of(heads.plan(plain))


FIXED: dict[str, dict[str, Any]] = {  # settings that have one right value
    "eagle3": {**{key: value for key, value in MODEL_OPTIMIZER.items() if value is not None}, "is_causal": True},
    "eagle3 speculators": {"use_aux_hidden_state": True, "draft_vocab_size": DRAFTED, "is_neox_style": True},
    "dflash": {
        "causal": False, "causal_head": False, "use_swa": False, "input_embedding_scale": 1.0, "shift_label": False,
        "sample_from_anchor": False,
    },
    "dflash speculators": {
        "sample_from_anchor": False, "is_causal": False, "enable_confidence_head": False, "output_multiplier": 1,
    },
    "medusa": {"medusa_num_layers": 1},
}  # fmt: skip


def with_config(name: str, target: Path, folder: Path, config: dict[str, Any]) -> Path:
    """A head of this kind with this config. Its tensors are written once."""
    source = folder if folder.exists() else write(folder, *KINDS[name](target / "hf"))
    (source / "config.json").write_text(json.dumps(config))
    return source


HARMLESS = ("use_cache", "transformers_version", "id2label", "bos_token_id", "torch_dtype", "initializer_range")
SETTINGS = hypothesis.settings(
    max_examples=5, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.mark.parametrize("name", FIXED)
@SETTINGS
@hypothesis.given(data=st.data())
def test_odd_settings(name: str, data: st.DataObject, target: Path, tmp_path: Path):
    """Known and at its default, without effect, or null: as without it. Any other: refused by its name."""
    (_, config), fixed = KINDS[name](target / "hf"), FIXED[name]
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
    source = with_config(name, target, tmp_path / "head", made)
    if not wrong:
        found = shape_of(heads.plan(source))
        assert found == shape_of(heads.plan(with_config(name, target, tmp_path / "head", config)))
        return
    sentence = said(source)
    assert any(key in sentence for key in wrong) or "does not read such heads yet" in sentence, sentence


@pytest.mark.parametrize("name", FIXED)
@SETTINGS
@hypothesis.given(data=st.data())
def test_odd_values_of_settings_that_are_read(name: str, data: st.DataObject, target: Path, tmp_path: Path):
    """Whatever the value, a head is read or refused in one sentence."""
    _, config = KINDS[name](target / "hf")
    sections = [key for key, value in config.items() if isinstance(value, dict)]
    made = {key: dict(value) if key in sections else value for key, value in config.items()}
    place = data.draw(st.sampled_from([made, *(made[key] for key in sections)]))
    others = ("architectures", "rope_parameters", "layer_types", "model_type", "is_causal")
    key = data.draw(st.sampled_from(sorted({*place, *others})))
    place[key] = data.draw(STRANGE | st.lists(STRANGE, max_size=2) | st.dictionaries(st.just("rope_type"), STRANGE))
    source = with_config(name, target, tmp_path / "head", made)
    sentence = ""
    try:
        heads.plan(source)
    except CheckpointError as error:
        sentence = str(error)
    assert "\n" not in sentence and len(sentence) < 1000
