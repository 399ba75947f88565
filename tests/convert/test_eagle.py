"""Published EAGLE heads in and out: bit for bit, in every shape of the format, and what is refused."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import llama
from jaxspec.drafters.eagle import Eagle, EagleHead
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import HEAD, assert_bitwise, exported, imported, refused_head, run, tensors
from tests.convert.published_heads import EAGLE, eagle, write


@pytest.mark.parametrize(("dtype", "bias"), [("float32", True), ("float16", False), ("bfloat16", True)])
def test_round_trip(dtype: str, bias: bool, folder: Path):
    found = eagle(folder / "hf", dtype=dtype, bias=bias)
    config = imported(folder, write(folder / "head", found, EAGLE))
    assert config.settings == {"bias": bias, "own_embedding": False}
    assert config.dtype == config.source_dtype == dtype  # the tensors', although the config says float16
    assert "embedding" not in parameters.read_shapes(folder / HEAD / "params")

    written, back, said = exported(folder, "eagle")
    assert_bitwise(written, found)
    assert ("the head's fc has a bias, which vLLM does not support" in said) == bias
    assert {key: back[key] for key in EAGLE} == {**EAGLE, "torch_dtype": dtype}
    assert (back["bias"], back["qkv_bias"], back["attention_bias"], back["rope_theta"]) == (bias, False, False, 10000.0)


@pytest.mark.parametrize("flag", [True, False])
def test_biases_of_attention(flag: bool, folder: Path):
    found = eagle(folder / "hf", qkv_bias=True)
    config = imported(folder, write(folder / "head", found, {**EAGLE, **({"qkv_bias": True} if flag else {})}))
    assert (config.model.qkv_bias, config.model.output_bias) == (True, False)
    assert_bitwise(exported(folder, "eagle")[0], found)
    assert json.loads((folder / "back" / "config.json").read_text())["qkv_bias"] is True


@pytest.mark.parametrize("odd", ["fc.weight", "embed_tokens.weight"])
def test_each_tensor_keeps_its_own_dtype(odd: str, folder: Path):
    found = eagle(folder / "hf", dtype="float16")
    found[odd] = found[odd].astype(np.float32)
    config = imported(folder, write(folder / "head", found, EAGLE))
    assert config.settings["own_embedding"] == (odd == "embed_tokens.weight")
    assert_bitwise(exported(folder, "eagle")[0], found)


def test_own_embedding_is_kept_and_said(folder: Path):
    found = eagle(folder / "hf")
    found["embed_tokens.weight"][5, 3] = -found["embed_tokens.weight"][5, 3]
    result = run("head", write(folder / "head", found, EAGLE), folder / HEAD, "--target", folder / "ckpt")
    assert "has an embedding of its own" in result.err
    assert heads.read_head(folder / HEAD, "eagle").settings["own_embedding"]
    assert_bitwise(exported(folder, "eagle")[0], found)
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle(), folder / HEAD)
    np.testing.assert_array_equal(parameters.module_to_dict(head)["embedding"], found["embed_tokens.weight"])


def test_embedding_of_a_target_in_another_dtype(folder: Path):
    llama.convert(folder / "hf", folder / "narrow", "bfloat16")
    rounded = lambda array: array.astype(jnp.bfloat16).astype(np.float32)
    found = eagle(folder / "hf") | {"embed_tokens.weight": rounded(eagle(folder / "hf")["embed_tokens.weight"])}
    source = write(folder / "head", found, EAGLE)
    assert run("head", source, folder / "narrow" / "heads" / "eagle", "--target", folder / "narrow").code == 0
    assert not heads.read_head(folder / "narrow" / "heads" / "eagle", "eagle").settings["own_embedding"]


@pytest.mark.parametrize("prefix", ["model.", "module.ea_layer."])
def test_variants_of_the_format(prefix: str, folder: Path):
    found = eagle(folder / "hf", bias=False)
    named = {prefix + name: array for name, array in found.items()}
    named[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float64)  # old files carry it along
    config = {**EAGLE, "architectures": ["LlamaForCausalLMEagle"], "rope_theta": 5e5, "bias": False}
    assert imported(folder, write(folder / "head", named, config)).model.rope.theta == 5e5
    assert_bitwise(exported(folder, "eagle")[0], found)


def test_wrapper(folder: Path):
    found, target = eagle(folder / "hf"), tensors(folder / "hf")
    wrapper = {"model_type": "eagle", "model": EAGLE, "eagle_fc_bias": True}
    named = {name if name.startswith("fc.") else f"model.{name}": array for name, array in found.items()}
    imported(folder, write(folder / "head", {**named, "lm_head.weight": target["lm_head.weight"]}, wrapper))
    assert_bitwise(exported(folder, "eagle")[0], found)

    other = write(folder / "other", {**named, "lm_head.weight": -target["lm_head.weight"]}, wrapper)
    assert "tensor lm_head.weight in" in (sentence := refused_head(folder, other))
    assert "is not the LM head of" in sentence
    (other / "config.json").write_text(json.dumps({**wrapper, "model": "llama"}))
    assert "an object as 'model'" in refused_head(folder, other)


def test_head_elsewhere(folder: Path):
    found = eagle(folder / "hf")
    run("head", write(folder / "head", found, EAGLE), folder / "apart", "--target", folder / "ckpt")
    result = run("export", folder / "apart", folder / "back", "--format", "eagle", "--target", folder / "ckpt")
    assert result.code == 0, result.err
    assert_bitwise(tensors(folder / "back"), found)


def test_trained_head_is_exported(folder: Path):
    model = dataclasses.replace(config_json.read_config(folder / "ckpt").model, num_layers=3)  # the target's
    config = HeadConfig("eagle", model, "float32", "float32", {"bias": False})
    module = EagleHead(model, rngs=nnx.Rngs(3), bias=False)
    (folder / HEAD).mkdir(parents=True)
    heads.write_head(folder / HEAD, config, module)
    assert module.fc is not None
    np.testing.assert_array_equal(exported(folder, "eagle")[0]["fc.weight"], module.fc.kernel[...].T)
    assert json.loads((folder / "back" / "config.json").read_text())["num_hidden_layers"] == 1


def test_an_ablated_head_has_no_published_format(folder: Path):
    model = dataclasses.replace(config_json.read_config(folder / "ckpt").model, num_layers=1)
    config = HeadConfig("eagle", model, "float32", "float32", {"bias": False, "inputs": "unshifted"})
    (folder / HEAD).mkdir(parents=True)
    heads.write_head(folder / HEAD, config, EagleHead(model, rngs=nnx.Rngs(3), bias=False, inputs="unshifted"))
    result = run("export", folder / HEAD, folder / "back", "--format", "eagle")
    assert result.code == 2 and "--inputs unshifted, which --format eagle cannot describe" in result.last
    assert not (folder / "back").exists()
