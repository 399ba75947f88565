"""Hugging Face → checkpoint → Hugging Face, bit for bit."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.convert import llama
from tests import hf_models
from tests.convert.commands import assert_bitwise, run, tensors

# What a config means, whatever the version that wrote it.
MEANING = (
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window", "num_local_experts", "num_experts_per_tok",
    "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
)  # fmt: skip


def meaning(path: Path) -> dict[str, object]:
    config = transformers.AutoConfig.from_pretrained(path)
    rope = {key: value for key, value in config.rope_parameters.items() if value is not None}
    if rope["rope_type"] == "dynamic":
        rope.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    values = {key: getattr(config, key, None) for key in MEANING}
    values["head_dim"] = values["head_dim"] or config.hidden_size // config.num_attention_heads
    return {**values, "rope": rope}


@pytest.mark.parametrize("family", hf_models.FAMILIES)
def test_every_family(family: str, tmp_path: Path):
    model = hf_models.make(family, tmp_path / "hf")
    config = llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    assert_bitwise(tensors(tmp_path / "back"), tensors(tmp_path / "hf"))
    assert meaning(tmp_path / "back") == meaning(tmp_path / "hf")
    # EAGLE's own code finds the target's embedding by the index, however few files there are.
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict.fromkeys(tensors(tmp_path / "hf"), "model.safetensors")
    assert memory.parameter_count(config.model) == sum(p.numel() for p in model.parameters())

    restored = parameters.restore(tmp_path / "ckpt")
    kernel = model.model.layers[1].self_attn.k_proj.weight.detach().numpy().T
    np.testing.assert_array_equal(restored.layers[1].attention.k.kernel[...], kernel)


def test_half_precision_in_shards(tmp_path: Path):
    dtype = "bfloat16"
    hf_models.make("qwen2", tmp_path / "hf", dtype=dtype, shard_size="15KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    config = llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    assert config.dtype == config.source_dtype == dtype
    llama.export(tmp_path / "ckpt", tmp_path / "back", shard_bytes=15_000)
    assert_bitwise(tensors(tmp_path / "back"), tensors(tmp_path / "hf"))

    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "back" / file)
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in tensors(tmp_path / "hf").values())
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")


def test_bin_files(tmp_path: Path):
    model = hf_models.make("llama", tmp_path / "hf", dtype="bfloat16", shard_size="20KB")
    expected = tensors(tmp_path / "hf")
    for file in [*(tmp_path / "hf").glob("*.safetensors"), tmp_path / "hf" / "model.safetensors.index.json"]:
        file.unlink()
    names = sorted(expected)
    state = model.state_dict()
    halves = {"a.bin": names[::2], "b.bin": names[1::2]}
    for file, part in halves.items():
        torch.save({name: state[name] for name in part}, tmp_path / "hf" / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "hf" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    assert_bitwise(tensors(tmp_path / "back"), expected)


@pytest.mark.parametrize("keep_head", [True, False])
def test_tied_file_may_repeat_its_embedding(keep_head: bool, tmp_path: Path):
    hf_models.make("llama-tied", tmp_path / "hf")
    found = tensors(tmp_path / "hf")
    extra = {"lm_head.weight": found["model.embed_tokens.weight"]} if keep_head else {}
    inv_freq = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}  # old files carry it along
    save_file({**found, **extra, **inv_freq}, tmp_path / "hf" / "model.safetensors")
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    assert_bitwise(tensors(tmp_path / "back"), found)


def test_narrower_dtype_rounds_once(tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    config = llama.convert(tmp_path / "hf", tmp_path / "ckpt", "bfloat16")
    assert (config.dtype, config.source_dtype) == ("bfloat16", "float32")
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    rounded = {k: a.astype(jnp.bfloat16).astype(np.float32) for k, a in tensors(tmp_path / "hf").items()}
    assert_bitwise(tensors(tmp_path / "back"), rounded)


def test_each_tensor_keeps_its_own_dtype(tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf", dtype="float16")
    wider = lambda array: array.astype(np.float32) * np.float32(1.0001)
    mixed = {k: wider(a) if "norm" in k else a for k, a in tensors(tmp_path / "hf").items()}
    save_file(mixed, tmp_path / "hf" / "model.safetensors")
    for dtype in (None, "float32"):
        config = llama.convert(tmp_path / "hf", tmp_path / f"ckpt-{dtype}", dtype)
        assert config.source_dtype == "float16"  # of most bytes
        llama.export(tmp_path / f"ckpt-{dtype}", tmp_path / f"back-{dtype}")
        assert_bitwise(tensors(tmp_path / f"back-{dtype}"), mixed)


def test_old_spelling_of_the_rope_reads_the_same(tmp_path: Path):
    hf_models.make("llama3-rope", tmp_path / "hf")
    new = llama.plan(tmp_path / "hf").config
    file = tmp_path / "hf" / "config.json"
    values = json.loads(file.read_text())
    rope = values.pop("rope_parameters")
    values |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "type": rope["rope_type"]}}
    file.write_text(json.dumps(values))
    assert llama.plan(tmp_path / "hf").config == new


def test_end_of_sequence_ids_of_both_configs_count(tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    generation: dict[str, Any] = {"eos_token_id": [5, 2, 7], "repetition_penalty": 1.1, "pad_token_id": 9}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(generation))
    result = run("llama", tmp_path / "hf", tmp_path / "ckpt")
    assert "repetition_penalty 1.1, which jaxspec does not apply" in result.err
    assert "texts end at them too" not in result.err
    config = config_json.read_config(tmp_path / "ckpt")
    assert (config.bos, config.eos, config.pad) == (1, (5, 2, 7), 9)
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "back").eos_token_id == [5, 2, 7]
    generation = {"eos_token_id": 5, "suppress_tokens": [3], "num_beams": 4, "min_length": 0, "bad_words_ids": None}
    generation |= {"guidance_scale": 3.0, "typical_p": 1.0, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    generation |= {"top_h": 0.4, "force_words_ids": [[5]]}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(generation))
    said = run("llama", tmp_path / "hf", tmp_path / "other").err
    active = "suppress_tokens [3], num_beams 4, guidance_scale 3.0, top_h 0.4, force_words_ids [[5]]"
    assert f"sets {active}, which jaxspec does not apply" in said
    assert "greedily unless told otherwise: --temperature 0.6 --top-p 0.9 --top-k 50" in said
    assert "names tokens [2] as the end of text" in said


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_absent_ids_are_the_defaults_of_transformers(family: str, tmp_path: Path):
    hf_models.make(family, tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").unlink(missing_ok=True)
    values = json.loads((file := tmp_path / "hf" / "config.json").read_text())
    del values["bos_token_id"], values["eos_token_id"]
    file.write_text(json.dumps(values))
    theirs, ours = transformers.AutoConfig.from_pretrained(tmp_path / "hf"), llama.plan(tmp_path / "hf")[0]
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, (theirs.eos_token_id,) if theirs.eos_token_id else ())


def test_a_padding_id_outside_the_vocabulary_stays_in_its_file(tmp_path: Path):
    made = hf_models.make("llama", tmp_path / "hf")
    outside = {"pad_token_id": made.config.vocab_size}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(outside))
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back")
    assert json.loads((tmp_path / "back" / "generation_config.json").read_text()).items() >= outside.items()
