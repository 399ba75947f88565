"""DFlash heads imported and exported: each layout bit for bit, the meaning of its config, and refusals."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.dflash import Dflash
from jaxspec.drafters.draft_vocabulary import ids_of
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import HEAD, assert_bitwise, exported, imported, run, said, tensors
from tests.convert.published_heads import (
    BLOCK,
    DFLASH,
    DFLASH_HEAD_DIM,
    DFLASH_LAYERS,
    DFLASH_SHAPE,
    DFLASH_SPECULATORS,
    DFLASH_TAPS,
    DRAFTED,
    MASK,
    VOCABULARY,
    dflash,
    ids,
    with_target,
    write,
)


def test_every_tensor_has_its_place(folder: Path):
    found = dflash(dtype := "float16")
    config = imported(folder, write(folder / "head", found, DFLASH))
    assert (config.dtype, config.source_dtype, config.model.rope.theta) == (dtype, dtype, 1e6)
    assert (config.model.num_layers, config.model.head_dim, config.model.qk_norm) == (
        DFLASH_LAYERS,
        DFLASH_HEAD_DIM,
        True,
    )
    assert config.settings == {
        "taps": DFLASH_TAPS,
        "block": BLOCK,
        "mask_token": MASK,
        "draft_vocabulary": None,
        "own_embedding": False,
        "own_head": False,
    }
    ours = parameters.module_to_dict(restore_head(loading.load(folder / "ckpt", "float32"), Dflash(), folder / HEAD))
    for name, theirs in {
        "fc.kernel": "fc",
        "context_norm": "hidden_norm",
        "norm": "norm",
        "layers.1.attention_norm": "layers.1.input_layernorm",
        "layers.1.mlp_norm": "layers.1.post_attention_layernorm",
        "layers.0.attention.k.kernel": "layers.0.self_attn.k_proj",
        "layers.0.attention.q_norm": "layers.0.self_attn.q_norm",
        "layers.1.attention.k_norm": "layers.1.self_attn.k_norm",
        "layers.1.mlp.down.kernel": "layers.1.mlp.down_proj",
    }.items():
        array = found[f"{theirs}.weight"].astype(np.float32)
        np.testing.assert_array_equal(ours[name], array.T if "kernel" in name else array)


def test_official_and_back(folder: Path):
    found = dflash("bfloat16")
    imported(folder, write(folder / "head", found, DFLASH))
    back, values, _ = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert {key: values[key] for key in DFLASH} == DFLASH


def test_speculators_and_back(folder: Path):
    """Copies of the target's tensors are not stored; the export writes them again."""
    found = with_target(dflash("float32"), folder / "hf")
    config = imported(folder, write(folder / "head", found, DFLASH_SPECULATORS))
    assert not config.settings["own_embedding"] and not config.settings["own_head"]
    assert not {"embedding", "head.kernel"} & parameters.read_shapes(folder / HEAD / "params").keys()
    back, values, _ = exported(folder, "speculators", "--verifier", "org/model")
    assert_bitwise(back, found)
    layers = values["transformer_layer_config"]
    assert {key: layers[key] for key in DFLASH_SHAPE} == DFLASH_SHAPE
    assert {key: values[key] for key in DFLASH_SPECULATORS if key != "transformer_layer_config"} == {
        key: value for key, value in DFLASH_SPECULATORS.items() if key != "transformer_layer_config"
    }
    says = values["speculators_config"]
    assert (says["algorithm"], says["proposal_methods"][0]["speculative_tokens"]) == ("dflash", BLOCK - 1)
    assert says["verifier"] == {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]}


def test_a_draft_vocabulary_comes_back(folder: Path):
    found = with_target(dflash(), folder / "hf", drafted=True)
    found["embed_tokens.weight"] = found["embed_tokens.weight"][::-1].copy()
    source = write(folder / "head", found, {**DFLASH_SPECULATORS, "draft_vocab_size": DRAFTED})
    err = said(folder, source)
    assert "an embedding of its own" in err and "an LM head of its own" in err
    head = restore_head(loading.load(folder / "ckpt", "float32"), Dflash(), folder / HEAD)
    np.testing.assert_array_equal(ids_of(head.options.draft_vocabulary, VOCABULARY), ids())
    back, values, _ = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert values["draft_vocab_size"] == DRAFTED
    refusal = run("export", folder / HEAD, folder / "official", "--format", "dflash")
    assert refusal.code == 2 and "an embedding of its own" in refusal.last and not (folder / "official").exists()


def test_from_one_layout_into_the_other(folder: Path):
    found = dflash()
    imported(folder, write(folder / "head", with_target(found, folder / "hf"), DFLASH_SPECULATORS))
    back, values, _ = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert values["dflash_config"] == DFLASH["dflash_config"] and values["num_target_layers"] == 8


@pytest.mark.parametrize(
    ("config", "arguments", "taps", "words"),
    [
        (DFLASH, [], [2, 6], ["the layout of DFlash's authors", "outputs", "one more each"]),
        ({**DFLASH, "dflash_config": {"mask_token_id": MASK}}, [], [2, 6], ["those of DFlash's own code"]),
        (DFLASH_SPECULATORS, [], [2, 6], ["the layout of speculators and vLLM", "inputs these are"]),
        (DFLASH, ["--taps", "0,3"], [0, 3], ["as given by --taps"]),
    ],
)
def test_taps(config: dict[str, Any], arguments: list[str], taps: list[int], words: list[str], folder: Path):
    err = said(folder, write(folder / "head", dflash(), config), *arguments)
    assert all(word in err for word in [*words, f"layers {', '.join(map(str, taps))} (from 0)"]), err
    assert heads.read_head(folder / HEAD, "dflash").settings["taps"] == taps


def test_newer_configs(folder: Path):
    """The block's size among the settings of DFlash, rope in the words of transformers 5, a prefix in the names."""
    older = ("block_size", "rope_theta", "num_target_layers", "architectures")
    values = {key: value for key, value in DFLASH.items() if key not in older}
    values |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    values["dflash_config"] = {**DFLASH["dflash_config"], "block_size": BLOCK}
    source = write(folder / "head", {f"model.{name}": array for name, array in dflash().items()}, values)
    config = imported(folder, source)
    assert (config.settings["block"], config.model.rope.theta) == (BLOCK, 5e5)


def test_what_a_format_has_no_words_for(folder: Path):
    imported(folder, write(folder / "head", dflash(), DFLASH), "--taps", "0,3")
    refusal = run("export", folder / HEAD, folder / "official", "--format", "dflash")
    assert refusal.code == 2 and "reads the target's embeddings" in refusal.last
    assert not (folder / "official").exists()
    assert exported(folder, "speculators")[1]["aux_hidden_state_layer_ids"] == [0, 3]


@pytest.mark.parametrize("form", ["dflash", "speculators"])
def test_a_markov_term_is_not_dropped_in_silence(form: str, folder: Path):
    config = imported(folder, write(folder / "head", dflash(), DFLASH))
    trained = dataclasses.replace(config, dtype="float32", settings={**config.settings, "markov_rank": 2})
    head = Dflash().build_head(HeadShape(trained.model, trained.settings), nnx.Rngs(0))
    (folder / "trained").mkdir()
    heads.write_head(folder / "trained", trained, head)
    refusal = run("export", folder / "trained", folder / "out", "--format", form, "--target", folder / "ckpt")
    assert refusal.code == 2 and "has a Markov term (--markov-rank 2)" in refusal.last
    assert not (folder / "out").exists()


def test_a_head_beside_a_target_with_a_tied_embedding(tmp_path: Path):
    """The LM head that speculators' files repeat is the embedding then."""
    from jaxspec.convert import llama
    from tests import hf_models

    hf_models.make("llama", tmp_path / "hf", num_hidden_layers=8, tie_word_embeddings=True)
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    assert config_json.read_config(tmp_path / "ckpt").model.tie_embeddings
    table = tensors(tmp_path / "hf")["model.embed_tokens.weight"]
    found = {**dflash(), "embed_tokens.weight": table, "lm_head.weight": table}
    config = imported(tmp_path, write(tmp_path / "head", found, DFLASH_SPECULATORS))
    assert not config.settings["own_embedding"] and not config.settings["own_head"]
    assert_bitwise(exported(tmp_path, "speculators")[0], found)
