"""DFlash heads imported and exported: each layout bit for bit, the meaning of its config, and refusals."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import config_json, heads, loading, parameters
from jaxspec.drafters.dflash import Dflash, DflashOptions
from jaxspec.drafters.draft_vocabulary import ids_of
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import (
    HEAD,
    assert_bitwise,
    exported,
    imported,
    inspected,
    refused_export,
    refused_head,
    run,
    said,
    tensors,
)
from tests.convert.published_heads import (
    BLOCK,
    DEEPSPEC,
    DFLASH,
    DFLASH_SHAPE,
    DFLASH_SPECULATORS,
    DRAFTED,
    DSPARK_TERMS,
    MASK,
    VOCABULARY,
    WIDTH,
    dflash,
    dspark,
    ids,
    with_target,
    write,
)


def test_official_and_back(folder: Path):
    found = dflash("bfloat16")
    imported(folder, write(folder / "head", found, DFLASH))
    back, values, _ = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert values.pop("dflash_config") == {**DFLASH["dflash_config"], "causal": False, "causal_head": False}
    assert {key: values.get(key, DFLASH["dflash_config"]) for key in DFLASH} == DFLASH
    assert (values["sample_from_anchor"], values["is_causal"]) == (False, False)


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
    assert values["dflash_config"].items() >= DFLASH["dflash_config"].items() and values["num_target_layers"] == 8


@pytest.mark.parametrize(
    ("config", "arguments", "taps", "words"),
    [
        (DFLASH, [], [2, 6], ["the layout of its authors", "outputs", "one more each"]),
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
    values |= {"rope_theta": 5e5, "rope_scaling": {"type": "default"}}  # as SpecForge writes them, in agreement
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


WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": True}
SPECULATORS_SHAPE = DFLASH_SPECULATORS["transformer_layer_config"]


@pytest.mark.parametrize("terms", [{}, DSPARK_TERMS, {**DSPARK_TERMS, "confidence_head_with_markov": False}])
def test_deepspecs_heads(terms: dict[str, Any], folder: Path):
    """Rows draft the next position; the target's tables are not stored; a conversion of the export is the same."""
    source = DEEPSPEC | terms
    with_markov = source.get("confidence_head_with_markov", False)
    found = with_target(dspark(with_markov=with_markov) if terms else dflash(), folder / "hf")
    config = imported(folder, write(folder / "head", found, source))
    options = DflashOptions.from_settings(config.settings)
    assert (options.anchor, options.levels, options.taps, options.mask_token) == (True, BLOCK, (2, 6), MASK)
    assert not options.own_embedding and not options.own_head
    confidence = "none" if not terms else "markov" if with_markov else "hidden"
    assert (options.markov_rank, options.confidence) == (source["markov_rank"], confidence)
    assert inspected(folder / HEAD)["kind"] == ("DSpark" if terms else "DFlash")
    assert "--format deepspec" in refused_export(folder, HEAD, "official", "--format", "dflash")
    back, values, _ = exported(folder, "deepspec")
    assert_bitwise(back, found)
    assert {key: values[key] for key in source if key != "num_anchors"} == {
        key: value for key, value in source.items() if key != "num_anchors"
    }
    assert (values["sample_from_anchor"], values["is_causal"], values["causal_head"]) == (True, False, False)
    assert imported(folder, folder / "back") == config


def test_listed_outputs_of_deepspec(folder: Path):
    """-1 is the output of the embeddings; the last layer's output has two meanings."""
    found = with_target(dflash(), folder / "hf")
    first = write(folder / "head", found, {**DEEPSPEC, "target_layer_ids": [-1, 4]})
    assert imported(folder, first).settings["taps"] == [0, 5]
    last = write(folder / "last", found, {**DEEPSPEC, "target_layer_ids": [1, 7]})
    assert "the output of the target's last layer" in refused_head(folder, last)


def test_the_first_draft_of_a_dspark_head(folder: Path):
    """LM head of row 0, and W2 W1[root]: the two matrices have the same shape."""
    found = with_target(dspark(), folder / "hf")
    imported(folder, write(folder / "head", found, DEEPSPEC | DSPARK_TERMS))
    model = loading.load(folder / "ckpt", "float32")
    head = restore_head(model, Dflash(), folder / HEAD)
    hidden = np.random.default_rng(0).standard_normal((1, 1, WIDTH)).astype(np.float32)
    root = jnp.array([[7]])
    logits = head.logits(model.target, jnp.asarray(hidden)) + head.markov(root)
    first, second = (found[f"markov_head.markov_{name}.weight"] for name in ("w1", "w2"))
    wanted = hidden[0, 0] @ found["lm_head.weight"].T + second @ first[7]
    np.testing.assert_allclose(logits[0, 0], wanted, atol=1e-4)
    weight, bias = (found[f"confidence_head.proj.{name}"] for name in ("weight", "bias"))
    odds = weight[0] @ np.concatenate([hidden[0, 0], first[7]]) + bias[0]
    np.testing.assert_allclose(head.acceptance_odds(jnp.asarray(hidden), root)[0, 0], odds, atol=1e-4)


def test_specforges_dspark_is_deepspecs(folder: Path):
    """Settings in a section, and early names of the terms; for SGLang, with DeepSpec's class and its settings too."""
    ours = imported(folder, write(folder / "head", with_target(dspark(), folder / "hf"), DEEPSPEC | DSPARK_TERMS))
    terms = {"projector_type": "dspark", "attention_mode": "gqa", "confidence_head_alpha": 1.0, **DSPARK_TERMS}
    del terms["enable_confidence_head"]
    nested = {**DFLASH["dflash_config"], **terms}
    found = {f"logit_head.{name}" if "_head." in name else name: array for name, array in dspark().items()}
    found |= {name: array for name, array in dspark().items() if "markov_w1" in name}
    found["logit_head.markov_head.markov_w1.weight"] = np.zeros((1, 1), np.float32)  # its own code drops it
    config = {**DFLASH, "architectures": ["DSparkDraftModel"], "dflash_config": nested}
    assert imported(folder, write(folder / "specforge", found, config)) == ours
    config |= {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": nested["markov_rank"],
        "markov_head_type": "vanilla",
    }
    assert imported(folder, write(folder / "sglang", found, config)) == ours
    (folder / "sglang" / "config.json").write_text(
        json.dumps(config | {"dflash_config": {**nested, "attention_mode": "mha"}})
    )
    assert imported(folder, folder / "sglang") == ours
    config = {**config, "dflash_config": None, "dspark_config": {**DFLASH["dflash_config"], **DSPARK_TERMS}}
    assert imported(folder, write(folder / "flat", found, config)) == ours


@pytest.mark.parametrize(
    ("settings", "causal", "drafts"),
    [
        ({"sample_from_anchor": True}, [], 4),
        ({"sample_from_anchor": False, "transformer_layer_config": {**SPECULATORS_SHAPE, **WINDOWS}}, [True, False], 3),
        ({"transformer_layer_config": {**SPECULATORS_SHAPE, **WINDOWS}, "sliding_window_non_causal": True}, [], 4),
    ],
)
def test_dspark_of_speculators(settings: dict[str, Any], causal: list[bool], drafts: int, folder: Path):
    """With a draft vocabulary, in one of the two matrices. Without a flag the number of drafts tells the rows."""
    found = with_target(dspark(drafted=DRAFTED), folder / "hf", drafted=True)
    methods = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafts}]}
    config = {
        **{key: value for key, value in DFLASH_SPECULATORS.items() if key != "sample_from_anchor"},
        "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", "draft_vocab_size": DRAFTED,
        **DSPARK_TERMS, "speculators_config": methods, **settings,
    }  # fmt: skip
    ours = imported(folder, write(folder / "head", found, config))
    options = DflashOptions.from_settings(ours.settings)
    assert (list(options.causal), options.levels, options.anchor) == (causal, drafts, drafts == BLOCK)
    assert options.windows == ((8, 0) if "transformer_layer_config" in settings else ())
    back, values, _ = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert values["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == drafts
    assert values["sample_from_anchor"] == options.anchor
    assert imported(folder, folder / "back") == ours
    rows = imported(folder, folder / "head", "--rows", "own" if options.anchor else "next")
    assert rows.settings["anchor"] != options.anchor


def test_a_dflash_head_of_speculators_with_anchor_rows(folder: Path):
    found = with_target(dflash(), folder / "hf")
    config = imported(folder, write(folder / "head", found, {**DFLASH_SPECULATORS, "sample_from_anchor": True}))
    assert config.settings["anchor"]
    back, values, _ = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert (values["sample_from_anchor"], values["speculators_model_type"]) == (True, "dflash")


@pytest.mark.parametrize(
    ("settings", "causal", "windows", "kind"),
    [
        ({"dflash_config": {**DFLASH["dflash_config"], "causal_head": True}}, [True, True], [], "JetSpec"),
        (
            {"is_causal": True, "dflash_config": {**DFLASH["dflash_config"], "causal": True}},
            [True, True],
            [],
            "JetSpec",
        ),
        (WINDOWS, [True, False], [8, 0], "DFlash"),
        ({**WINDOWS, "is_causal": False}, [], [8, 0], "DFlash"),
    ],
)
def test_causal_blocks_and_windows(settings: dict, causal: list, windows: list, kind: str, folder: Path):
    found = dflash()
    config = imported(folder, write(folder / "head", found, {**DFLASH, **settings}))
    assert (config.settings["causal"], config.settings["windows"]) == (causal, windows)
    assert inspected(folder / HEAD)["kind"] == kind
    whole = causal == [True, True]
    if whole:
        assert "causal blocks" in refused_export(folder, HEAD, "out", "--format", "speculators")
    back, values, _ = exported(folder, "dflash")
    assert_bitwise(back, found)
    assert values.get("is_causal") == (None if causal == [True, False] else whole)
    assert values["dflash_config"].get("causal_head") == values.get("is_causal")
    assert imported(folder, folder / "back") == config


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
