"""EAGLE-3 heads exported: bit for bit, in each format, and heads that a format cannot describe."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.eagle3 import Eagle3
from jaxspec.model.config import Rope
from tests.convert.commands import HEAD, assert_bitwise, exported, imported, run
from tests.convert.published_heads import (
    DRAFTED,
    EAGLE3,
    EAGLE3_SPECULATORS,
    LISTED,
    TAPS,
    VOCABULARY,
    eagle3,
    ids,
    write,
)


def trained(folder: Path, *, of_model: dict[str, Any] | None = None, **settings: Any) -> HeadConfig:
    """A head made here, each parameter random."""
    drafter = Eagle3()
    shape = drafter.head_for(config_json.read_config(folder / "ckpt").model, ids().tolist())
    model = dataclasses.replace(shape.model, **(of_model or {}))
    shape = HeadShape(model, {**shape.settings, **settings})
    module = drafter.build_head(shape, nnx.Rngs(0))
    keys = iter(jax.random.split(jax.random.key(5), 100))
    shaken = jax.tree.map(lambda x: x + jax.random.normal(next(keys), x.shape), module)
    config = HeadConfig("eagle3", shape.model, "float32", "float32", dict(shape.settings))
    (folder / HEAD).mkdir(parents=True)
    heads.write_head(folder / HEAD, config, shaken)
    return config


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_official_and_back(dtype: str, folder: Path):
    found = eagle3(dtype=dtype)
    imported(folder, write(folder / "head", found, EAGLE3))
    back, values, said = exported(folder, "eagle3")
    assert_bitwise(back, found)
    assert "warning" not in said
    kept = {key: value for key, value in EAGLE3.items() if key != "architectures"}
    assert {key: values[key] for key in kept} == {**kept, "torch_dtype": dtype}
    assert values["architectures"] == ["LlamaForCausalLMEagle3"] and "eagle_config" not in values
    assert "norm_output" not in values and values["norm_before_residual"] is False


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_before_residual": True, "norm_output": True, "fc_norm": True},
        {"norm_before_fc": True, LISTED: [1, 3, 6]},
    ],
)
def test_speculators_and_back(flags: dict[str, Any], folder: Path):
    tap_norm = "each" if "fc_norm" in flags else "all" if "norm_before_fc" in flags else "none"
    found = eagle3(layer="layers.0", dtype="bfloat16", tap_norm=tap_norm)
    imported(folder, write(folder / "head", found, {**EAGLE3_SPECULATORS, **flags}))
    back, values, _ = exported(folder, "speculators", "--verifier", "org/model")
    assert_bitwise(back, found)
    every = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert {name: values[name] for name in every} == {name: flags.get(name, False) for name in every}
    assert values[LISTED] == flags.get(LISTED, TAPS)
    assert values["speculators_config"]["verifier"] == {
        "name_or_path": "org/model",
        "architectures": ["LlamaForCausalLM"],
    }
    layer = values["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["vocab_size"]) == ("llama", 1, VOCABULARY)
    assert (values["draft_vocab_size"], layer["tie_word_embeddings"]) == (DRAFTED, False)


def test_norms_of_queries_and_keys_come_back(folder: Path):
    """As in heads of Qwen3, which EAGLE's own code has none of."""
    found = eagle3(layer="layers.0", qk_norm=True)
    imported(folder, write(folder / "head", found, EAGLE3_SPECULATORS))
    back, values, _ = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert values["transformer_layer_config"]["model_type"] == "qwen3"
    refused = run("export", folder / HEAD, folder / "official", "--format", "eagle3")
    assert refused.code == 2 and "norms queries and keys" in refused.err and not (folder / "official").exists()


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("eagle3", {}),
        ("eagle3", {"taps": [0, 3, 7]}),
        ("eagle3", {"own_embedding": True}),
        ("speculators", {}),
        ("speculators", {"taps": [0, 7], "tap_norm": "each", "norm_before_residual": True, "returns_normed": True}),
        ("speculators", {"draft_vocabulary": None, "tap_norm": "all"}),
    ],
)
def test_what_is_made_here_comes_back(form: str, settings: dict[str, Any], folder: Path):
    config = trained(folder, **settings)
    _, values, said = exported(folder, form)
    assert ("EAGLE's own code always reads layers 2, 4, 5" in said) == (form == "eagle3" and "taps" in settings)
    if form == "speculators":
        assert "--verifier" in said and values["speculators_config"]["verifier"]["name_or_path"] == "ckpt"
    first = parameters.read_arrays(folder / HEAD / "params", parameters.read_shapes(folder / HEAD / "params"))
    (folder / HEAD).rename(folder / "first")
    imported(folder, folder / "back")
    assert heads.read_head(folder / HEAD, "eagle3") == config
    again = parameters.read_arrays(folder / HEAD / "params", parameters.read_shapes(folder / HEAD / "params"))
    assert_bitwise(first, again)


@pytest.mark.parametrize(
    ("form", "settings", "words"),
    [
        ("eagle3", {"tap_norm": "each"}, "before fc, which --format eagle3 cannot describe; use --format speculators"),
        ("eagle3", {"norm_before_residual": True}, "begins the residual stream with the normed feature"),
        ("eagle3", {"returns_normed": True}, "feeds back the output of its final norm"),
        ("eagle3", {"taps": [1, 2]}, "reads 2 layers of the target and not three"),
        ("eagle3", {"taps": [5, 2, 4]}, "reads the layers 5, 2, 4 in this order"),
        ("speculators", {"taps": [5, 2, 4]}, "reads the layers 5, 2, 4 in this order"),
        ("speculators", {"of_model": {"qk_norm": True, "mlp_bias": True}}, "and has biases of the MLP"),
    ],
)
def test_what_a_format_has_no_words_for(form: str, settings: dict[str, Any], words: str, folder: Path):
    trained(folder, **settings)
    result = run("export", folder / HEAD, folder / "back", "--format", form)
    assert (result.code, words in result.last) == (2, True), result.err
    assert not (folder / "back").exists()


LLAMA3 = Rope(theta=5e5, scaling="llama3", factor=8.0, original_length=32)


@pytest.mark.parametrize(
    ("rope", "written", "warned"),
    [
        (Rope(scaling="linear", factor=4.0), {"type": "linear", "factor": 4.0}, False),
        (Rope(theta=5e5, scaling="linear", factor=4.0), {"type": "linear", "factor": 4.0}, False),
        (Rope(scaling="dynamic", factor=2.0, original_length=256), {"type": "dynamic", "factor": 2.0}, False),
        (
            Rope(scaling="dynamic", factor=2.0, original_length=64),
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
            True,
        ),
        (
            LLAMA3,
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            True,
        ),
    ],
)
def test_rope_scaling_as_eagles_own_code_reads_it(rope: Rope, written: dict, warned: bool, folder: Path):
    config = trained(folder, of_model={"rope": rope})
    _, values, said = exported(folder, "eagle3")
    assert values["rope_scaling"] == written
    assert ("EAGLE's own code does not support this head's rope scaling" in said) == warned
    assert ("takes rope_theta 10000 where a rope is scaled" in said) == (rope.theta != 10_000 and not warned)
    (folder / HEAD).rename(folder / "first")
    imported(folder, folder / "back")
    assert heads.read_head(folder / HEAD, "eagle3") == config
