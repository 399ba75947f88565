"""Published EAGLE heads in and out: bit for bit, in every shape of the format, and what is refused."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.numpy import save_file

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import llama
from jaxspec.drafters.eagle import Eagle, EagleHead
from jaxspec.engine.head_weights import restore_head
from tests import hf_models
from tests.convert.commands import assert_bitwise, refused, run, tensors
from tests.convert.eagle_heads import CONFIG, WIDTH, weights, write

OUT = Path("ckpt", "heads", "eagle")


def imported(folder: Path, source: Path, *args: object) -> HeadConfig:
    result = run("head", source, folder / OUT, "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return heads.read_head(folder / OUT, "eagle")


def exported(folder: Path) -> dict[str, np.ndarray]:
    result = run("export", folder / OUT, folder / "back", "--format", "eagle")
    assert result.code == 0, result.err
    return tensors(folder / "back")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
def test_round_trip(dtype: str, bias: bool, folder: Path):
    found = weights(folder / "hf", dtype=dtype, bias=bias)
    config = imported(folder, write(folder / "head", found))
    assert config.settings == {"bias": bias, "own_embedding": False}
    assert config.dtype == config.source_dtype == dtype  # the tensors', although the config says float16
    assert "embedding" not in parameters.read_shapes(folder / OUT / "params")

    assert_bitwise(exported(folder), found)
    back = json.loads((folder / "back" / "config.json").read_text())
    assert {key: back[key] for key in CONFIG} == {**CONFIG, "torch_dtype": dtype}
    assert (back["bias"], back["qkv_bias"], back["attention_bias"], back["rope_theta"]) == (bias, False, False, 10000.0)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_that_vllm_would_not_read_is_said(bias: bool, folder: Path):
    imported(folder, write(folder / "head", weights(folder / "hf", bias=bias)))
    said = run("export", folder / OUT, folder / "back", "--format", "eagle").err
    assert ("the head's fc has a bias, which vLLM does not support" in said) == bias


def test_loads_into_the_drafter(folder: Path):
    found = weights(folder / "hf", dtype="bfloat16", qkv_bias=True)
    imported(folder, write(folder / "head", found))
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle(), folder / OUT)
    assert head.embedding is None
    ours, as_float = parameters.module_to_dict(head), lambda name: found[name].astype(np.float32)
    np.testing.assert_array_equal(ours["fc.kernel"], as_float("fc.weight").T)
    np.testing.assert_array_equal(ours["layer.attention.k.bias"], as_float("layers.0.self_attn.k_proj.bias"))


@pytest.mark.parametrize("flag", [True, False])
def test_biases_of_attention(flag: bool, folder: Path):
    found = weights(folder / "hf", qkv_bias=True)
    config = imported(folder, write(folder / "head", found, {**CONFIG, **({"qkv_bias": True} if flag else {})}))
    assert (config.model.qkv_bias, config.model.output_bias) == (True, False)
    assert_bitwise(exported(folder), found)
    assert json.loads((folder / "back" / "config.json").read_text())["qkv_bias"] is True


def test_wider_dtype_comes_back_bitwise(folder: Path):
    found = weights(folder / "hf", dtype="float16")
    config = imported(folder, write(folder / "head", found), "--dtype", "float32")
    assert (config.dtype, config.source_dtype) == ("float32", "float16")
    assert_bitwise(exported(folder), found)


@pytest.mark.parametrize("odd", ["fc.weight", "embed_tokens.weight"])
def test_each_tensor_keeps_its_own_dtype(odd: str, folder: Path):
    found = weights(folder / "hf", dtype="float16")
    found[odd] = found[odd].astype(np.float32)
    config = imported(folder, write(folder / "head", found))
    assert config.settings["own_embedding"] == (odd == "embed_tokens.weight")
    assert_bitwise(exported(folder), found)


def test_own_embedding_is_kept_and_said(folder: Path):
    found = weights(folder / "hf")
    found["embed_tokens.weight"][5, 3] = -found["embed_tokens.weight"][5, 3]
    result = run("head", write(folder / "head", found), folder / OUT, "--target", folder / "ckpt")
    assert "has an embedding of its own" in result.err
    assert heads.read_head(folder / OUT, "eagle").settings["own_embedding"]
    assert_bitwise(exported(folder), found)
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle(), folder / OUT)
    np.testing.assert_array_equal(parameters.module_to_dict(head)["embedding"], found["embed_tokens.weight"])


def test_embedding_of_a_target_in_another_dtype(folder: Path):
    llama.convert(folder / "hf", folder / "narrow", "bfloat16")
    rounded = lambda array: array.astype(jnp.bfloat16).astype(np.float32)
    found = weights(folder / "hf") | {"embed_tokens.weight": rounded(weights(folder / "hf")["embed_tokens.weight"])}
    source = write(folder / "head", found)
    assert run("head", source, folder / "narrow" / "heads" / "eagle", "--target", folder / "narrow").code == 0
    assert not heads.read_head(folder / "narrow" / "heads" / "eagle", "eagle").settings["own_embedding"]


@pytest.mark.parametrize("prefix", ["", "model.", "module.ea_layer."])
def test_variants_of_the_format(prefix: str, folder: Path):
    found = weights(folder / "hf", bias=False)
    named = {prefix + name: array for name, array in found.items()}
    named[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float64)  # old files carry it along
    config = {**CONFIG, "architectures": ["LlamaForCausalLMEagle"], "rope_theta": 5e5, "bias": False}
    assert imported(folder, write(folder / "head", named, config)).model.rope.theta == 5e5
    assert_bitwise(exported(folder), found)


def test_wrapper(folder: Path):
    found, target = weights(folder / "hf"), tensors(folder / "hf")
    wrapper = {"model_type": "eagle", "model": CONFIG, "eagle_fc_bias": True}
    named = {name if name.startswith("fc.") else f"model.{name}": array for name, array in found.items()}
    imported(folder, write(folder / "head", {**named, "lm_head.weight": target["lm_head.weight"]}, wrapper))
    assert_bitwise(exported(folder), found)

    other = write(folder / "other", {**named, "lm_head.weight": -target["lm_head.weight"]}, wrapper)
    assert "tensor lm_head.weight in" in (sentence := refuse(folder, other))
    assert "is not the LM head of" in sentence
    (other / "config.json").write_text(json.dumps({**wrapper, "model": "llama"}))
    assert "an object as 'model'" in refuse(folder, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bin_files(dtype: str, folder: Path):
    found = weights(folder / "hf", dtype=dtype)
    source = write(folder / "head", found)
    state = {name: torch.from_numpy(a.astype(np.float32)).to(getattr(torch, dtype)) for name, a in found.items()}
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    imported(folder, source)
    assert_bitwise(exported(folder), found)


def test_shards(folder: Path):
    found = weights(folder / "hf")
    source = write(folder / "head", found)
    (source / "model.safetensors").unlink()
    names = sorted(found)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: found[name] for name in part}, source / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    imported(folder, source)
    assert_bitwise(exported(folder), found)


def test_hub_ids(folder: Path, monkeypatch: pytest.MonkeyPatch):
    source, asked = write(folder / "head", weights(folder / "hf")), []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: asked.append(name) or str(source))
    monkeypatch.chdir(folder)
    imported(folder, Path("org/head"), "--revision", "v2")
    assert asked == ["org/head"]


def refuse(folder: Path, source: Path) -> str:
    """The sentence with which a head is refused, after checking that it left no trace."""
    return refused(source, folder / "out", "--target", folder / "ckpt", command="head")


MODEL = {"model.layers.0.input_layernorm.weight": np.ones(WIDTH, np.float32)}


@pytest.mark.parametrize(
    ("found", "values", "words"),
    [
        ({}, {"speculators_model_type": "eagle"}, "in the speculators format that is neither EAGLE-3's nor DFlash's"),
        (MODEL, {}, "use `jaxspec-convert llama`"),
        ({"wte.weight": np.ones(3, np.float32)}, {}, "no head that jaxspec knows"),
    ],
)
def test_other_kinds_are_refused_by_name(found: dict, values: dict, words: str, folder: Path):
    source = write(folder / "head", found, {**CONFIG, **values})
    assert words in refuse(folder, source)


def test_no_head_at_all(folder: Path):
    assert "is not a folder" in refuse(folder, folder / "absent")
    assert "is a jaxspec checkpoint already" in refuse(folder, folder / "ckpt")
    source = write(folder / "head", weights(folder / "hf"))
    (source / "model.safetensors").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in refuse(folder, source)
    imported(folder, write(folder / "whole", weights(folder / "hf")))
    result = run("head", folder / OUT, folder / "again", "--target", folder / "ckpt")
    assert (result.code, "is a jaxspec head already" in result.last) == (2, True)


NORM = "layers.0.post_attention_layernorm.weight"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({NORM: None}, [NORM, "is missing"]),
        ({"fc.weight": None}, ["fc.weight", "is missing"]),
        ({"embed_tokens.weight": None}, ["embed_tokens.weight", "is missing"]),
        ({"lm_head.weight": np.ones((96, WIDTH), np.float32)}, ["lm_head.weight", "is not part of this model"]),
        ({"norm.weight": np.ones(WIDTH, np.float32)}, ["norm.weight", "is not part of this model"]),
        ({"layers.0.input_layernorm.weight": np.ones(WIDTH, np.float32)}, ["input_layernorm", "is not part"]),
        ({"layers.0.self_attn.q_proj.bias": np.ones(WIDTH, np.float32)}, ["k_proj.bias", "is missing"]),
        ({"model.fc.bias": np.ones(WIDTH, np.float32)}, ["model.fc.bias", "is not part of this model"]),
        ({NORM: np.ones(31, np.float32)}, [NORM, "[31]", "[32]"]),
        ({"fc.bias": np.ones(2, np.float32)}, ["fc.bias", "[2]", "[32]"]),
        ({NORM: np.ones(WIDTH, np.int8)}, [NORM, "I8"]),
        ({NORM: np.full(WIDTH, np.nan, np.float32)}, [NORM, "NaN"]),
    ],
)
def test_tensors(changed: dict, words: list[str], folder: Path):
    found = weights(folder / "hf") | changed
    source = write(folder / "head", {name: array for name, array in found.items() if array is not None})
    sentence = refuse(folder, source)
    assert all(word in sentence for word in words), sentence


def test_name_with_and_without_prefix(folder: Path):
    named = {f"model.{name}": array for name, array in weights(folder / "hf").items()}
    source = write(folder / "head", {**named, "fc.weight": named["model.fc.weight"]})
    assert "tensor fc.weight is twice in" in refuse(folder, source)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_hidden_layers": 2}, ["num_hidden_layers 2", "an EAGLE head has one layer"]),
        ({"hidden_act": "gelu"}, ["hidden_act 'gelu'"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config: awq"]),
        ({"qkv_bias": True}, ["k_proj.bias", "is missing"]),
        ({"intermediate_size": 40}, ["mlp.", "48", "40"]),
        ({"hidden_size": None}, ["'hidden_size'"]),
    ],
)
def test_configs(values: dict[str, Any], words: list[str], folder: Path):
    sentence = refuse(folder, write(folder / "head", weights(folder / "hf"), {**CONFIG, **values}))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("size", [0, 5, -100])
def test_truncated_file(size: int, folder: Path):
    source = write(folder / "head", weights(folder / "hf"))
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "not a whole safetensors file" in refuse(folder, source)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("vocab_size", 97, "a target with a vocabulary of 96, and this target's is 97"),
        ("hidden_size", 64, "a target with a hidden size of 32, and this target's is 64"),
    ],
)
def test_head_of_another_target(setting: str, value: int, words: str, folder: Path):
    source = write(folder / "head", weights(folder / "hf"))
    overrides: dict[str, Any] = {setting: value}
    hf_models.make("llama", folder / "other-hf", num_hidden_layers=1, **overrides)
    llama.convert(folder / "other-hf", folder / "other")
    assert words in refused(source, folder / "out", "--target", folder / "other", command="head")

    imported(folder, source)
    result = run("export", folder / OUT, folder / "back", "--format", "eagle", "--target", folder / "other")
    assert (result.code, words in result.last) == (2, True)


def test_target_is_needed_and_must_be_one(folder: Path):
    source = write(folder / "head", weights(folder / "hf"))
    assert "--target" in run("head", source, folder / "out").last
    assert "no readable jaxspec checkpoint" in refused(source, folder / "out", "--target", "/nowhere", command="head")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            lambda f: [f / OUT, f / "back"],
            "eagle, eagle3, dflash, speculators or medusa writes",
        ),
        (
            lambda f: [f / OUT, f / "back", "--format", "hf"],
            "eagle, eagle3, dflash, speculators or medusa writes",
        ),
        (lambda f: [f / "ckpt", f / "back", "--format", "eagle"], "is a checkpoint, which --format hf writes"),
        (lambda f: [f / "ckpt", f / "back", "--target", f / "ckpt"], "needs --format eagle"),
        (lambda f: [f / "head", f / "back", "--format", "eagle"], "not the config of a trained head"),
        (lambda f: [f / "moved", f / "back", "--format", "eagle"], "name its target with --target CKPT"),
    ],
)
def test_wrong_pairings_of_export(arguments: Callable[[Path], list], words: str, folder: Path):
    imported(folder, write(folder / "head", weights(folder / "hf")))
    shutil.copytree(folder / OUT, folder / "moved")
    result = run("export", *arguments(folder))
    assert (result.code, words in result.last) == (2, True), result.err
    assert not (folder / "back").exists()


def test_head_elsewhere(folder: Path):
    found = weights(folder / "hf")
    run("head", write(folder / "head", found), folder / "apart", "--target", folder / "ckpt")
    result = run("export", folder / "apart", folder / "back", "--format", "eagle", "--target", folder / "ckpt")
    assert result.code == 0, result.err
    assert_bitwise(tensors(folder / "back"), found)


def test_trained_head_is_exported(folder: Path):
    model = dataclasses.replace(config_json.read_config(folder / "ckpt").model, num_layers=3)  # the target's
    config = HeadConfig("eagle", model, "float32", "float32", {"bias": False})
    module = EagleHead(model, rngs=nnx.Rngs(3), bias=False)
    (folder / OUT).mkdir(parents=True)
    heads.write_head(folder / OUT, config, module)
    assert module.fc is not None
    np.testing.assert_array_equal(exported(folder)["fc.weight"], module.fc.kernel[...].T)
    assert json.loads((folder / "back" / "config.json").read_text())["num_hidden_layers"] == 1


def test_an_ablated_head_has_no_published_format(folder: Path):
    model = dataclasses.replace(config_json.read_config(folder / "ckpt").model, num_layers=1)
    config = HeadConfig("eagle", model, "float32", "float32", {"bias": False, "inputs": "unshifted"})
    (folder / OUT).mkdir(parents=True)
    heads.write_head(folder / OUT, config, EagleHead(model, rngs=nnx.Rngs(3), bias=False, inputs="unshifted"))
    result = run("export", folder / OUT, folder / "back", "--format", "eagle")
    assert result.code == 2 and "was trained with --inputs unshifted, for which the format has no place" in result.last
    assert not (folder / "back").exists()


def test_inspect(folder: Path):
    lines = lambda path: dict(line.strip().split(": ", 1) for line in run("inspect", path).out.splitlines())
    source = write(folder / "head", weights(folder / "hf", dtype="float16"))
    published = lines(source)
    assert published["format"] == "EAGLE head, of EAGLE-1 or EAGLE-2"
    assert published["fc.weight"] == "[32, 64]"
    imported(folder, source)
    ours = lines(folder / OUT)
    assert ours["format"] == "jaxspec head for the drafter eagle, exported in float16"
    assert (ours["bias"], ours["own embedding"], ours["fc.kernel"]) == ("yes", "no", "[64, 32]")
    for key in ("layers", "hidden size", "attention heads", "vocabulary", "positions"):
        assert ours[key] == published[key]
    assert lines(folder / "ckpt")["heads"] == "eagle"


def test_what_is_half_written_has_no_config(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """So the remains of a killed conversion are neither a checkpoint nor a head."""
    seen = []

    def look(path: Path, *_: object) -> None:
        seen.append({file.name for file in Path(path).parent.iterdir()})
        raise KeyboardInterrupt

    source = write(folder / "eagle", weights(folder / "hf"))
    monkeypatch.setattr(parameters, "write_params", look)
    assert run("llama", folder / "hf", folder / "again").code == 130
    assert run("head", source, folder / OUT, "--target", folder / "ckpt").code == 130
    assert len(seen) == 2 and not any("config.json" in names for names in seen)


def test_heads_that_come_along_are_named_by_builtin(tmp_path: Path):
    result = run("export", "builtin/heads/eagle", tmp_path / "back", "--format", "eagle")
    assert result.code == 0, result.err
    assert "fc.weight" in tensors(tmp_path / "back")
    assert "drafter medusa" in run("inspect", "builtin/heads/medusa").out
    assert "builtin/heads/nothing is not a folder" in run("inspect", "builtin/heads/nothing").last
