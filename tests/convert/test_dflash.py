"""DFlash heads imported and exported: each layout bit for bit, the meaning of its config, and refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.dflash import Dflash
from jaxspec.drafters.draft_vocabulary import ids_of
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import assert_bitwise, refused, run, tensors
from tests.convert.dflash_heads import (
    BLOCK,
    HEAD_DIM,
    LAYERS,
    MASK,
    OFFICIAL,
    SHAPE,
    SPECULATORS,
    TAPS,
    weights,
    with_target,
    write,
)
from tests.convert.eagle3_heads import DRAFTED, ids, make_target, maps
from tests.convert.eagle_heads import VOCABULARY, WIDTH

OUT = Path("ckpt", "heads", "dflash")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"))


def said(folder: Path, source: Path, *args: object) -> str:
    """The output of the command that converted a head."""
    result = run("head", source, folder / OUT, "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return result.err


def imported(folder: Path, source: Path, *args: object) -> HeadConfig:
    said(folder, source, *args)
    return heads.read_head(folder / OUT, "dflash")


def exported(folder: Path, form: str, *args: object) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and config of the head in a format."""
    result = run("export", folder / OUT, folder / "back", "--format", form, *args)
    assert result.code == 0, result.err
    return tensors(folder / "back"), json.loads((folder / "back" / "config.json").read_text())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_tensor_has_its_place(dtype: str, folder: Path):
    found = weights(dtype)
    config = imported(folder, write(folder / "head", found))
    assert (config.dtype, config.source_dtype, config.model.rope.theta) == (dtype, dtype, 1e6)
    assert (config.model.num_layers, config.model.head_dim, config.model.qk_norm) == (LAYERS, HEAD_DIM, True)
    assert config.settings == {
        "taps": TAPS,
        "block": BLOCK,
        "mask_token": MASK,
        "draft_vocabulary": None,
        "own_embedding": False,
        "own_head": False,
    }
    ours = parameters.module_to_dict(restore_head(loading.load(folder / "ckpt", "float32"), Dflash(), folder / OUT))
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_official_and_back(dtype: str, folder: Path):
    found = weights(dtype)
    imported(folder, write(folder / "head", found))
    back, values = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert {key: values[key] for key in OFFICIAL} == OFFICIAL


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_speculators_and_back(dtype: str, folder: Path):
    """Copies of the target's tensors are not stored; the export writes them again."""
    found = with_target(weights(dtype), folder / "hf")
    config = imported(folder, write(folder / "head", found, SPECULATORS))
    assert not config.settings["own_embedding"] and not config.settings["own_head"]
    assert not {"embedding", "head.kernel"} & parameters.read_shapes(folder / OUT / "params").keys()
    back, values = exported(folder, "speculators", "--verifier", "org/model")
    assert_bitwise(back, found)
    layers = values["transformer_layer_config"]
    assert {key: layers[key] for key in SHAPE} == SHAPE
    assert {key: values[key] for key in SPECULATORS if key != "transformer_layer_config"} == {
        key: value for key, value in SPECULATORS.items() if key != "transformer_layer_config"
    }
    says = values["speculators_config"]
    assert (says["algorithm"], says["proposal_methods"][0]["speculative_tokens"]) == ("dflash", BLOCK - 1)
    assert says["verifier"] == {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]}


def test_a_draft_vocabulary_comes_back(folder: Path):
    found = with_target(weights(), folder / "hf", drafted=True)
    found["embed_tokens.weight"] = found["embed_tokens.weight"][::-1].copy()
    source = write(folder / "head", found, {**SPECULATORS, "draft_vocab_size": DRAFTED})
    err = said(folder, source)
    assert "an embedding of its own" in err and "an LM head of its own" in err
    head = restore_head(loading.load(folder / "ckpt", "float32"), Dflash(), folder / OUT)
    np.testing.assert_array_equal(ids_of(head.options.draft_vocabulary, VOCABULARY), ids())
    back, values = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert values["draft_vocab_size"] == DRAFTED
    refusal = run("export", folder / OUT, folder / "official", "--format", "dflash")
    assert refusal.code == 2 and "an embedding of its own" in refusal.last and not (folder / "official").exists()


def test_from_one_layout_into_the_other(folder: Path):
    found = weights()
    imported(folder, write(folder / "head", with_target(found, folder / "hf"), SPECULATORS))
    back, values = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert values["dflash_config"] == OFFICIAL["dflash_config"] and values["num_target_layers"] == 8


@pytest.mark.parametrize(
    ("config", "arguments", "taps", "words"),
    [
        (OFFICIAL, [], [2, 6], ["the layout of DFlash's authors", "outputs", "one more each"]),
        ({**OFFICIAL, "dflash_config": {"mask_token_id": MASK}}, [], [2, 6], ["those of DFlash's own code"]),
        (SPECULATORS, [], [2, 6], ["the layout of speculators and vLLM", "inputs these are"]),
        (OFFICIAL, ["--taps", "0,3"], [0, 3], ["as --taps says"]),
    ],
)
def test_taps(config: dict[str, Any], arguments: list[str], taps: list[int], words: list[str], folder: Path):
    err = said(folder, write(folder / "head", weights(), config), *arguments)
    assert all(word in err for word in [*words, f"layers {', '.join(map(str, taps))} (from 0)"]), err
    assert heads.read_head(folder / OUT, "dflash").settings["taps"] == taps


def test_newer_configs(folder: Path):
    """The block's size among the settings of DFlash, rope in the words of transformers 5, a prefix in the names."""
    older = ("block_size", "rope_theta", "num_target_layers", "architectures")
    values = {key: value for key, value in OFFICIAL.items() if key not in older}
    values |= {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    values["dflash_config"] = {**OFFICIAL["dflash_config"], "block_size": BLOCK}
    source = write(folder / "head", {f"model.{name}": array for name, array in weights().items()}, values)
    config = imported(folder, source)
    assert (config.settings["block"], config.model.rope.theta) == (BLOCK, 5e5)


def test_inspect(folder: Path):
    lines = lambda path: dict(line.strip().split(": ", 1) for line in run("inspect", path).out.splitlines())
    source = write(folder / "head", weights("float16"))
    published = lines(source)
    assert published["format"] == "DFlash head, in the layout of DFlash's authors"
    assert published["taps"].startswith("2, 6 (target_layer_ids")
    assert published["layers.0.self_attn.q_proj.weight"] == "[64, 32]"
    imported(folder, source)
    ours = lines(folder / OUT)
    assert ours["format"] == "jaxspec head for the drafter dflash, exported in float16"
    assert (ours["taps"], ours["block"], ours["mask token"]) == ("2, 6", "4", "90")
    for key in ("draft vocabulary", "block", "mask token", "own head", "attention heads", "layers", "parameters"):
        assert ours[key] == published[key]


def test_what_a_format_has_no_words_for(folder: Path):
    imported(folder, write(folder / "head", weights()), "--taps", "0,3")
    refusal = run("export", folder / OUT, folder / "official", "--format", "dflash")
    assert refusal.code == 2 and "reads the target's embeddings" in refusal.last
    assert not (folder / "official").exists()
    assert exported(folder, "speculators")[1]["aux_hidden_state_layer_ids"] == [0, 3]


@pytest.mark.parametrize("form", ["dflash", "speculators"])
def test_a_markov_term_is_not_dropped_in_silence(form: str, folder: Path):
    config = imported(folder, write(folder / "head", weights()))
    trained = dataclasses.replace(config, dtype="float32", settings={**config.settings, "markov_rank": 2})
    head = Dflash().build_head(HeadShape(trained.model, trained.settings), nnx.Rngs(0))
    (folder / "trained").mkdir()
    heads.write_head(folder / "trained", trained, head)
    refusal = run("export", folder / "trained", folder / "out", "--format", form, "--target", folder / "ckpt")
    assert refusal.code == 2 and "has a Markov term (--markov-rank 2)" in refusal.last
    assert not (folder / "out").exists()


def refuse(folder: Path, source: Path, *args: object) -> str:
    """The sentence with which a head is refused, after checking that it left no trace."""
    return refused(source, folder / "out", "--target", folder / "ckpt", *args, command="head")


ONES = np.ones(WIDTH, np.float32)
TABLE = np.ones((VOCABULARY, WIDTH), np.float32)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_norm.weight": None}, ["hidden_norm.weight", "is missing"]),
        ({"fc.weight": None}, ["fc.weight", "is missing"]),
        ({"layers.1.self_attn.q_norm.weight": None}, ["layers.1.self_attn.q_norm", "is missing"]),
        ({"layers.2.input_layernorm.weight": ONES}, ["layers.2.input_layernorm.weight", "is not part of this model"]),
        ({"fc.bias": ONES}, ["fc.bias", "is not part of this model"]),
        ({"fc.weight": np.ones((WIDTH, 3 * WIDTH), np.float32)}, ["reads 3 layers", "2 are named", "--taps"]),
        ({"norm.weight": ONES * np.nan}, ["norm.weight", "NaN"]),
        ({"lm_head.weight": TABLE[:DRAFTED]}, ["d2t is missing", f"the {DRAFTED} of {VOCABULARY} tokens"]),
        ({"lm_head.weight": TABLE[:DRAFTED], **maps(ids()[::-1].copy())}, ["gives ids that do not ascend"]),
        (maps(ids()), ["d2t", f"[{DRAFTED}]", f"[{VOCABULARY}]"]),
    ],
)
def test_tensors(changed: dict[str, Any], words: list[str], folder: Path):
    found = weights() | changed
    source = write(folder / "head", {name: array for name, array in found.items() if array is not None})
    sentence = refuse(folder, source)
    assert all(word in sentence for word in words), sentence


WITHOUT = {"mask_token_id": None, "target_layer_ids": [1, 5]}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**OFFICIAL, "rope_theta": None}, ["gives no rope_theta", "disagree"]),
        ({**OFFICIAL, "block_size": None}, ["gives no block_size"]),
        ({**OFFICIAL, "block_size": 1}, ["block must be at least 2"]),
        ({**OFFICIAL, "block_size": "4"}, ["a whole number as 'block_size'"]),
        ({**OFFICIAL, "dflash_config": WITHOUT}, ["gives no mask_token_id"]),
        ({**OFFICIAL, "dflash_config": 3}, ["an object as 'dflash_config'"]),
        ({**OFFICIAL, "dflash_config": {**OFFICIAL["dflash_config"], "block_size": 8}}, ["block_size twice", "4", "8"]),
        (
            {**OFFICIAL, "dflash_config": {**OFFICIAL["dflash_config"], "causal": True}},
            ["'causal' to True", "where it is False"],
        ),
        ({**OFFICIAL, "dflash_config": {"mask_token_id": 96}, "vocab_size": VOCABULARY}, ["mask token 96", "0 to 95"]),
        ({**OFFICIAL, "num_target_layers": 36}, ["a target of 36 layers", "this target has 8"]),
        (
            {**OFFICIAL, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 7]}},
            ["the output of the target's last layer", "before or after the final norm"],
        ),
        (
            {**OFFICIAL, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [-2, 7]}},
            ["the output of the target's last layer"],
        ),
        ({**OFFICIAL, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": "1"}}, ["must list numbers"]),
        ({**OFFICIAL, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1]}}, ["reads 2 layers", "1 are"]),
        ({**OFFICIAL, "layer_types": ["full_attention", "sliding_attention"]}, ["layer_types 'sliding_attention'"]),
        ({**OFFICIAL, "sliding_window": 2048, "layer_types": None, "use_sliding_window": None}, ["sliding-window"]),
        ({**OFFICIAL, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope type 'yarn'"]),
        ({**OFFICIAL, "vocab_size": 97}, ["a vocabulary of 97", "this target's is 96"]),
        ({**SPECULATORS, "sample_from_anchor": True}, ["sample_from_anchor"]),
        ({**SPECULATORS, "aux_hidden_state_layer_ids": None}, ["has no aux_hidden_state_layer_ids", "--taps"]),
        ({**SPECULATORS, "aux_hidden_state_layer_ids": [2, 9]}, ["reads the input of layer 9"]),
        ({**SPECULATORS, "mask_token_id": None}, ["gives no mask_token_id"]),
        ({**SPECULATORS, "target_hidden_size": 64}, ["target_hidden_size 64", "as wide as their target"]),
        ({**SPECULATORS, "draft_vocab_size": 40}, ["draft_vocab_size 40", "lm_head.weight is missing"]),
        ({**SPECULATORS, "transformer_layer_config": None}, ["'transformer_layer_config'"]),
        ({**SPECULATORS, "speculators_model_type": "dspark"}, ["a DSpark head"]),
    ],
)
def test_configs(config: dict[str, Any], words: list[str], folder: Path):
    sentence = refuse(folder, write(folder / "head", weights(), config))
    assert all(word in sentence for word in words), sentence


def test_kinds_are_told_apart_by_their_tensors(folder: Path):
    """The config does not mention DFlash."""
    bare = {key: value for key, value in SHAPE.items() if key != "model_type"}
    assert "gives no block_size" in refuse(folder, write(folder / "head", weights(), bare))


def test_wrong_pairings(folder: Path):
    imported(folder, write(folder / "head", weights()))
    for args, words in (
        ((folder / OUT, folder / "back", "--format", "eagle3"), "is for the drafter dflash, and not for eagle3"),
        ((folder / "ckpt", folder / "back", "--format", "dflash"), "--format dflash or speculators takes a head"),
        ((folder / OUT, folder / "back", "--format", "dflash", "--verifier", "x"), "needs --format speculators"),
    ):
        result = run("export", *args)
        assert (result.code, words in result.last) == (2, True), result.err
    assert not (folder / "back").exists()


def test_a_head_beside_a_target_with_a_tied_embedding(tmp_path: Path):
    """The LM head that speculators' files repeat is the embedding then."""
    from jaxspec.convert import llama
    from tests import hf_models

    hf_models.make("llama", tmp_path / "hf", num_hidden_layers=8, tie_word_embeddings=True)
    llama.convert(tmp_path / "hf", tmp_path / "ckpt")
    assert config_json.read_config(tmp_path / "ckpt").model.tie_embeddings
    table = tensors(tmp_path / "hf")["model.embed_tokens.weight"]
    found = {**weights(), "embed_tokens.weight": table, "lm_head.weight": table}
    config = imported(tmp_path, write(tmp_path / "head", found, SPECULATORS))
    assert not config.settings["own_embedding"] and not config.settings["own_head"]
    assert_bitwise(exported(tmp_path, "speculators")[0], found)
