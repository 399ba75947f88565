"""Published EAGLE-3 heads: each layout, the meaning of its config, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxspec.checkpoint import heads, loading, parameters
from jaxspec.checkpoint.heads import HeadConfig
from jaxspec.convert import llama
from jaxspec.drafters.eagle3 import Eagle3, official_taps
from jaxspec.engine.head_weights import restore_head
from tests import hf_models
from tests.convert.commands import refused, run, tensors
from tests.convert.eagle3_heads import (
    DRAFTED,
    LAYERS,
    OFFICIAL,
    SPECULATORS,
    TAPS,
    ids,
    make_target,
    maps,
    weights,
    write,
)
from tests.convert.eagle_heads import CONFIG, HEADS, VOCABULARY, WIDTH

OUT = Path("ckpt", "heads", "eagle3")
LISTED = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"))


def imported(folder: Path, source: Path, *args: object) -> HeadConfig:
    result = run("head", source, folder / OUT, "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return heads.read_head(folder / OUT, "eagle3")


def said(folder: Path, source: Path, *args: object) -> str:
    result = run("head", source, folder / "said", "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return result.err


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("layer", "values"), [("midlayer", OFFICIAL), ("layers.0", SPECULATORS)])
def test_every_tensor_has_its_place(layer: str, values: dict, dtype: str, folder: Path):
    found = weights(layer=layer, dtype=dtype)
    config = imported(folder, write(folder / "head", found, values))
    assert (config.dtype, config.source_dtype, config.model.rope.theta) == (dtype, dtype, 10000.0)
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle3(), folder / OUT)
    np.testing.assert_array_equal(head.ids, ids())
    ours = parameters.module_to_dict(head)
    for name, theirs in {
        "fc.kernel": "fc.weight",
        "head.kernel": "lm_head.weight",
        "norm": "norm.weight",
        "feature_norm": f"{layer}.hidden_norm.weight",
        "layer.attention_norm": f"{layer}.input_layernorm.weight",
        "layer.mlp_norm": f"{layer}.post_attention_layernorm.weight",
        "layer.attention.k.kernel": f"{layer}.self_attn.k_proj.weight",
        "layer.mlp.down.kernel": f"{layer}.mlp.down_proj.weight",
    }.items():
        array = found[theirs].astype(np.float32)
        np.testing.assert_array_equal(ours[name], array.T if "kernel" in name else array)


@pytest.mark.parametrize(
    ("values", "arguments", "taps", "words"),
    [
        (OFFICIAL, [], TAPS, ["the layout of EAGLE's authors", "those of EAGLE's own code"]),
        ({**OFFICIAL, "architectures": ["LlamaForCausalLMEagle3"]}, [], TAPS, ["SpecForge and SGLang", "lists none"]),
        ({**OFFICIAL, "eagle_config": {LISTED: [0, 2, 6]}}, [], [1, 3, 7], ["SpecForge", "outputs", "one more each"]),
        ({**OFFICIAL, LISTED: [1, 3, 6]}, [], [1, 3, 6], ["top level", "inputs"]),
        ({**SPECULATORS, LISTED: [1, 3, 6]}, [], [1, 3, 6], ["speculators and vLLM", "top level"]),
        (SPECULATORS, [], TAPS, ["speculators and vLLM", "those of EAGLE's own code"]),
        ({**OFFICIAL, LISTED: [1, 3, 6]}, ["--taps", "0,1,7"], [0, 1, 7], ["as --taps says"]),
        ({**OFFICIAL, "eagle_config": {LISTED: [1]}, LISTED: [1]}, ["--taps", "0,1,2"], [0, 1, 2], ["as --taps says"]),
    ],
)
def test_taps(values: dict, arguments: list[str], taps: list[int], words: list[str], folder: Path):
    source = write(folder / "head", weights(), values)
    err = said(folder, source, *arguments)
    assert all(word in err for word in words), err
    assert f"layers {', '.join(map(str, taps))} (from 0)" in err
    assert heads.read_head(folder / "said", "eagle3").settings["taps"] == taps


@pytest.mark.parametrize(("layers", "taps"), [(1, (0, 0, 0)), (2, (1, 1, 0)), (4, (2, 2, 1)), (32, (2, 16, 29))])
def test_official_taps(layers: int, taps: tuple[int, ...]):
    """Of 32 layers they are those of EAGLE's code; all exist, however few layers there are."""
    assert official_taps(layers) == taps


@pytest.mark.parametrize("official", [True, False])
@pytest.mark.parametrize(
    ("flags", "made", "expected"),
    [
        ({}, {}, {}),
        ({"norm_before_residual": True}, {}, {"norm_before_residual": True}),
        ({"norm_before_fc": True}, {"tap_norm": "all"}, {"tap_norm": "all"}),
        ({"eagle_config": {"norm_before_fc": True}}, {"tap_norm": "all"}, {"tap_norm": "all"}),
        ({"fc_norm": True, "norm_before_fc": None}, {"tap_norm": "each"}, {"tap_norm": "each"}),
        ({"pre_norm": None, "norm_before_residual": False}, {}, {}),
    ],
)
def test_norms(flags: dict, made: dict, expected: dict, official: bool, folder: Path):
    values = {**(OFFICIAL if official else SPECULATORS), **flags}
    config = imported(folder, write(folder / "head", weights(**made), values))
    plain = {"tap_norm": "none", "norm_before_residual": False, "final_norm": True, "returns_normed": False}
    assert {name: config.settings[name] for name in plain} == {**plain, **expected}


@pytest.mark.parametrize(
    ("values", "final_norm", "returns_normed"),
    [
        ({**SPECULATORS, "norm_output": True}, True, True),
        ({**SPECULATORS, "norm_output": False}, True, False),
        ({**OFFICIAL, "norm_output": True}, True, False),
        ({**OFFICIAL, "norm_output": False}, False, False),
    ],
)
def test_norm_output_means_what_its_writer_meant(values: dict, final_norm: bool, returns_normed: bool, folder: Path):
    settings = imported(folder, write(folder / "head", weights(), values)).settings
    assert (settings["final_norm"], settings["returns_normed"]) == (final_norm, returns_normed)
    assert ("norm" in parameters.read_shapes(folder / OUT / "params")) == final_norm


def test_embedding(folder: Path):
    """A copy of the target's embedding is not stored; any other embedding is."""
    table = tensors(folder / "hf")["model.embed_tokens.weight"]
    assert not imported(folder, write(folder / "head", weights(embedding=table))).settings["own_embedding"]
    assert "embedding" not in parameters.read_shapes(folder / OUT / "params")
    other = write(folder / "other", weights(embedding=table[::-1].copy()))
    assert "has an embedding of its own" in said(folder, other)
    assert heads.read_head(folder / "said", "eagle3").settings["own_embedding"]
    assert parameters.read_shapes(folder / "said" / "params")["embedding"].shape == (VOCABULARY, WIDTH)


@pytest.mark.parametrize("kept", [{}, {"d2t": np.zeros(VOCABULARY, np.int64), "t2d": np.ones(VOCABULARY, bool)}])
def test_whole_vocabulary(kept: dict, folder: Path):
    source = write(folder / "head", weights(drafted=VOCABULARY) | kept, {**OFFICIAL, "draft_vocab_size": VOCABULARY})
    assert imported(folder, source).settings["draft_vocabulary"] is None


def test_variants_of_the_files(folder: Path):
    """A `.bin` file, a prefix, no draft_vocab_size, no t2d, wide heads, rope of its own, the first tokens drafted."""
    first = np.arange(DRAFTED)
    found = weights(head_dim=16) | maps(first)
    state = {f"model.{name}": torch.from_numpy(array) for name, array in found.items() if name != "lm_head.weight"}
    state["lm_head.weight"] = torch.from_numpy(found["lm_head.weight"])
    source = write(folder / "head", {}, {**CONFIG, "head_dim": 16, "rope_theta": 5e5})
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    config = imported(folder, source)
    assert (config.model.head_dim, config.model.rope.theta) == (16, 5e5)
    del found["t2d"]
    found |= {"d2t": maps(ids())["d2t"]}
    said(folder, write(folder / "without", found, {**OFFICIAL, "head_dim": 16}))
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle3(), folder / "said")
    np.testing.assert_array_equal(head.ids, ids())


def test_inspect(folder: Path):
    lines = lambda path: dict(line.strip().split(": ", 1) for line in run("inspect", path).out.splitlines())
    source = write(folder / "head", weights(dtype="float16", tap_norm="each"), {**OFFICIAL, "fc_norm": True})
    published = lines(source)
    assert published["format"] == "EAGLE-3 head, in the layout of EAGLE's authors"
    assert published["taps"] == (
        "by the target (layers 2, n/2 and n - 3 as in EAGLE's own code, since config.json lists none)"
    )
    assert published["midlayer.self_attn.q_proj.weight"] == "[32, 64]"
    imported(folder, source)
    ours = lines(folder / OUT)
    assert ours["format"] == "jaxspec head for the drafter eagle3, exported in float16"
    assert (ours["taps"], ours["layer.attention.q.kernel"]) == ("2, 4, 5", "[64, 32]")
    for key in ("draft vocabulary", "tap norm", "final norm", "attention heads", "vocabulary", "parameters"):
        assert ours[key] == published[key]
    assert (ours["draft vocabulary"], ours["final norm"]) == (f"{DRAFTED} of {VOCABULARY}", "yes")


def refuse(folder: Path, source: Path, *args: object) -> str:
    """The sentence with which a head is refused, after checking that it left no trace."""
    return refused(source, folder / "out", "--target", folder / "ckpt", *args, command="head")


ONES = np.ones(WIDTH, np.float32)
TWISTED = maps(ids())["d2t"][::-1].copy()
TABLE = np.ones((VOCABULARY, WIDTH), np.float32)
NORM = "midlayer.hidden_norm.weight"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({NORM: None}, [NORM, "is missing"]),
        ({"fc.weight": None}, ["fc.weight", "is missing"]),
        ({"lm_head.weight": None}, ["lm_head.weight", "is missing"]),
        ({"fc.bias": ONES}, ["fc.bias", "is not part of this model"]),
        ({"fc.weight": np.ones((WIDTH, 2 * WIDTH), np.float32)}, ["reads 2 layers", "3 are named", "--taps"]),
        ({"fc_norm.0.weight": ONES}, ["fc_norm.0.weight", "is not part of this model"]),
        ({NORM: np.ones(WIDTH, np.int8)}, [NORM, "I8"]),
        ({NORM: ONES * np.nan}, [NORM, "NaN"]),
        ({"midlayer.self_attn.q_norm.weight": ONES[: WIDTH // HEADS]}, ["midlayer.self_attn.k_norm", "is missing"]),
        ({"layers.1.self_attn.q_proj.weight": ONES}, ["layers.1.self_attn.q_proj.weight", "is not part of this model"]),
        ({"mask_hidden": np.ones((1, 1, 3 * WIDTH), np.float32)}, ["P-EAGLE's"]),
        ({"model.norm.weight": ONES, "model.midlayer.self_attn.q_proj.weight": ONES}, ["is twice in", "prefix model."]),
        ({"d2t": None}, ["d2t is missing", f"the {DRAFTED} of {VOCABULARY} tokens"]),
        ({"d2t": None, "t2d": None}, ["d2t is missing"]),
        ({"d2t": np.zeros(DRAFTED, np.int64), "t2d": np.ones(VOCABULARY, bool)}, ["0 everywhere", "never filled"]),
        ({"d2t": np.zeros(DRAFTED, np.int64), "t2d": None}, ["0 everywhere", "never filled"]),
        ({"d2t": np.zeros(DRAFTED, np.int64)}, ["d2t and t2d", "name different tokens"]),
        ({"t2d": np.ones(VOCABULARY, bool)}, ["d2t and t2d", f"({DRAFTED} and {VOCABULARY})"]),
        ({"d2t": TWISTED}, ["gives ids that do not ascend"]),
        ({"d2t": maps(ids())["d2t"] + 50}, ["the target's ids go from 0 to 95"]),
        ({"d2t": maps(ids())["d2t"] - 50}, ["the target's ids go from 0 to 95"]),
        ({"d2t": maps(ids())["d2t"].astype(np.float16)}, ["d2t", "float16", "whole numbers"]),
        ({"t2d": np.ones(VOCABULARY, np.float32)}, ["t2d", "float32", "truth values"]),
        ({"d2t": np.ones(3, np.int64)}, ["d2t", "[3]", "[40]"]),
        ({"t2d": np.ones(3, bool)}, ["t2d", "[3]", "[96]"]),
        ({"lm_head.weight": np.ones((97, WIDTH), np.float32)}, ["draft_vocab_size 40", "97 rows"]),
    ],
)
def test_tensors(changed: dict, words: list[str], folder: Path):
    found = weights() | changed
    source = write(folder / "head", {name: array for name, array in found.items() if array is not None})
    sentence = refuse(folder, source)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_hidden_layers": 2}, ["num_hidden_layers 2", "has one layer"]),
        ({"target_hidden_size": 64}, ["target_hidden_size 64", "as wide as their target"]),
        ({"sliding_window": 2048}, ["sliding-window attention (sliding_window 2048)"]),
        ({"layer_types": ["sliding_attention"]}, ["layer_types 'sliding_attention'"]),
        ({"post_norm": False}, ["'post_norm'", "jaxspec does not know"]),
        ({"eagle_config": {"pre_norm": 1}}, ["'pre_norm'"]),
        ({"eagle_config": 3}, ["an object as 'eagle_config'"]),
        ({"fc_norm": "each"}, ["true or false as 'fc_norm'"]),
        ({"norm_before_fc": True, "fc_norm": True}, ["exclude each other"]),
        ({"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}, ["norm_before_fc twice"]),
        ({"norm_before_fc": True}, ["input_norm.weight is missing"]),
        ({"draft_vocab_size": 41}, ["draft_vocab_size 41", "40 rows"]),
        ({"vocab_size": 97}, ["t2d", "[96]", "[97]"]),
        ({LISTED: [1, 2, 3], "eagle_config": {LISTED: [1, 2, 3]}}, [LISTED, "twice", "--taps"]),
        ({LISTED: [1, 2]}, ["reads 3 layers", "2 are named", "--taps"]),
        ({LISTED: "1,2,3"}, ["must list numbers of layers"]),
        ({LISTED: [1, 2, 8]}, ["reads the input of layer 8", "this target has 8", "--taps"]),
        ({"eagle_config": {LISTED: [1, 2, 7]}}, ["reads the input of layer 8"]),
        ({LISTED: [-1, 2, 7]}, ["reads the input of layer -1"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["rope type 'yarn'"]),
        ({"speculators_model_type": "eagle3"}, ["'transformer_layer_config'"]),
        ({"speculators_model_type": "peagle"}, ["P-EAGLE's head"]),
    ],
)
def test_configs(values: dict[str, Any], words: list[str], folder: Path):
    sentence = refuse(folder, write(folder / "head", weights(), {**OFFICIAL, **values}))
    assert all(word in sentence for word in words), sentence


def test_a_window_that_is_off(folder: Path):
    values = {**OFFICIAL, "sliding_window": 2048, "use_sliding_window": False}
    imported(folder, write(folder / "head", weights(), values))
    said(
        folder, write(folder / "full", weights(), {**OFFICIAL, "sliding_window": 9, "layer_types": ["full_attention"]})
    )


def test_wrong_taps(folder: Path):
    source = write(folder / "head", weights())
    assert "separated by commas, such as 2,16,29, not '2;3'" in refuse(folder, source, "--taps", "2;3")
    assert "reads the input of layer 9" in refuse(folder, source, "--taps", "1,2,9")
    assert "reads 3 layers of the target, and 2 are named" in refuse(folder, source, "--taps", "1,2")
    medusa = folder / "medusa"
    medusa.mkdir()
    (medusa / "config.json").write_text(json.dumps({"medusa_num_heads": 1}))
    assert "--taps is for EAGLE-3 and DFlash heads" in refuse(folder, medusa, "--taps", "1,2,3")


def test_head_of_another_target(folder: Path):
    hf_models.make("llama", folder / "other-hf", num_hidden_layers=LAYERS, hidden_size=64)
    llama.convert(folder / "other-hf", folder / "other")
    source = write(folder / "head", weights())
    sentence = refused(source, folder / "out", "--target", folder / "other", command="head")
    assert "a target with a hidden size of 32, and this target's is 64" in sentence
