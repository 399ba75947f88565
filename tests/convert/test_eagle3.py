"""Published EAGLE-3 heads: each layout, the meaning of its config, and refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from jaxspec.checkpoint import heads, loading, parameters
from jaxspec.drafters.eagle3 import Eagle3, official_taps
from jaxspec.engine.head_weights import restore_head
from tests.convert.commands import HEAD, assert_bitwise, exported, imported, refused_export, refused_head, said, tensors
from tests.convert.published_heads import (
    DRAFTED,
    EAGLE,
    EAGLE3,
    EAGLE3_DEEPSPEC,
    EAGLE3_SPECULATORS,
    LISTED,
    TAPS,
    VOCABULARY,
    WIDTH,
    eagle3,
    ids,
    maps,
    narrow_eagle3,
    with_target,
    write,
)


@pytest.mark.parametrize(
    ("values", "arguments", "taps", "words"),
    [
        (EAGLE3, [], TAPS, ["the layout of its authors", "those of EAGLE's own code"]),
        ({**EAGLE3, "architectures": ["LlamaForCausalLMEagle3"]}, [], TAPS, ["SpecForge and SGLang", "lists none"]),
        ({**EAGLE3, "eagle_config": {LISTED: [0, 2, 6]}}, [], [1, 3, 7], ["SpecForge", "outputs", "one more each"]),
        ({**EAGLE3, LISTED: [1, 3, 6]}, [], [1, 3, 6], ["top level", "inputs"]),
        ({**EAGLE3_SPECULATORS, LISTED: [1, 3, 6]}, [], [1, 3, 6], ["speculators and vLLM", "top level"]),
        (EAGLE3_SPECULATORS, [], TAPS, ["speculators and vLLM", "those of EAGLE's own code"]),
        ({**EAGLE3, LISTED: [1, 3, 6]}, ["--taps", "0,1,7"], [0, 1, 7], ["as given by --taps"]),
        ({**EAGLE3, "eagle_config": {LISTED: [1]}, LISTED: [1]}, ["--taps", "0,1,2"], [0, 1, 2], ["given by --taps"]),
    ],
)
def test_taps(values: dict, arguments: list[str], taps: list[int], words: list[str], folder: Path):
    source = write(folder / "head", eagle3(), values)
    err = said(folder, source, *arguments)
    assert all(word in err for word in words), err
    assert f"layers {', '.join(map(str, taps))} (from 0)" in err
    assert heads.read_head(folder / HEAD, "eagle3").settings["taps"] == taps


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
    values = {**(EAGLE3 if official else EAGLE3_SPECULATORS), **flags}
    config = imported(folder, write(folder / "head", eagle3(**made), values))
    plain = {"tap_norm": "none", "norm_before_residual": False, "returns_normed": False}
    assert {name: config.settings[name] for name in plain} == {**plain, **expected}


@pytest.mark.parametrize(
    ("values", "warned"),
    [(EAGLE3_SPECULATORS, False), (EAGLE3, True), ({**EAGLE3, "eagle_config": {}}, True)],
)
@pytest.mark.parametrize("fed_back", [True, False])
def test_norm_output_feeds_the_normed_output_back(values: dict, warned: bool, fed_back: bool, folder: Path):
    text = said(folder, write(folder / "head", eagle3(), {**values, "norm_output": fed_back}))
    assert heads.read_head(folder / HEAD, "eagle3").settings["returns_normed"] == fed_back
    assert ("pull request 879" in text) == (warned and fed_back)


def test_embedding(folder: Path):
    """A copy of the target's embedding is not stored; any other embedding is."""
    table = tensors(folder / "hf")["model.embed_tokens.weight"]
    assert not imported(folder, write(folder / "head", eagle3(embedding=table), EAGLE3)).settings["own_embedding"]
    assert "embedding" not in parameters.read_shapes(folder / HEAD / "params")
    other = write(folder / "other", eagle3(embedding=table[::-1].copy()), EAGLE3)
    assert "has an embedding of its own" in said(folder, other)
    assert heads.read_head(folder / HEAD, "eagle3").settings["own_embedding"]
    assert parameters.read_shapes(folder / HEAD / "params")["embedding"].shape == (VOCABULARY, WIDTH)


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_a_config_that_repeats_the_targets_number_of_layers(layer: str, folder: Path):
    """As in EAGLE's head for Vicuna 13B. Its code builds one layer whatever the number."""
    found, config = eagle3(layer=layer), {**EAGLE3, "num_hidden_layers": 40}
    assert imported(folder, write(folder / "head", found, config)).model.num_layers == 1
    second = {"layers.1.self_attn.q_proj.weight": found[f"{layer}.self_attn.q_proj.weight"]}
    words = refused_head(folder, write(folder / "other", found | second, config))
    assert "holds layers.1.self_attn.q_proj.weight, and an EAGLE-3 head that jaxspec reads has one layer" in words


def test_a_head_narrower_than_its_target(folder: Path):
    found, config = narrow_eagle3()
    ours = imported(folder, write(folder / "head", found, config))
    assert (ours.model.hidden_size, ours.settings["target_width"], ours.settings["taps"]) == (WIDTH // 2, WIDTH, TAPS)
    assert ours.model.rope.theta == 10000
    parameters_of = parameters.read_shapes(folder / HEAD / "params")
    assert parameters_of["embedding"].shape == (VOCABULARY, WIDTH // 2)
    back, values, _ = exported(folder, "eagle3")
    assert_bitwise(back, found)
    assert values["target_hidden_size"] == WIDTH and imported(folder, folder / "back") == ours
    other = write(folder / "other", found, {**config, "target_hidden_size": 64} | {"hidden_size": WIDTH // 2})
    assert "has 96 inputs, and 3 layers of width 64 are named" in refused_head(folder, other)
    wide = write(folder / "wide", found | {"fc.weight": np.zeros((WIDTH // 2, 3 * 64), np.float32)}, {
        **config, "target_hidden_size": 64,
    })  # fmt: skip
    assert "hidden size" in refused_head(folder, wide)


def test_deepspecs_head(folder: Path):
    """Five layers, norms of queries and keys, and the target's own embedding and LM head."""
    found = with_target(eagle3(layer="layers.0", drafted=VOCABULARY, taps=5, qk_norm=True), folder / "hf")
    ours = imported(folder, write(folder / "head", found, EAGLE3_DEEPSPEC))
    assert ours.settings["taps"] == [1, 2, 4, 5, 7] and ours.model.qk_norm
    assert not ours.settings["own_embedding"] and not ours.settings["own_head"]
    back, values, _ = exported(folder, "deepspec")
    assert_bitwise(back, found)
    assert {key: values[key] for key in ("architectures", "target_layer_ids", "num_target_layers")} == {
        key: EAGLE3_DEEPSPEC[key] for key in ("architectures", "target_layer_ids", "num_target_layers")
    }
    assert imported(folder, folder / "back") == ours


def test_a_sliding_window(folder: Path):
    shape = {**EAGLE, "layer_types": ["sliding_attention"], "sliding_window": 6}
    config = {**EAGLE3_SPECULATORS, "transformer_layer_config": shape}
    found = eagle3(layer="layers.0")
    ours = imported(folder, write(folder / "head", found, config))
    assert ours.settings["window"] == 6
    assert "sliding window" in refused_export(folder, HEAD, "official", "--format", "eagle3")
    back, values, _ = exported(folder, "speculators")
    assert_bitwise(back, found)
    assert values["transformer_layer_config"]["sliding_window"] == 6 and imported(folder, folder / "back") == ours


@pytest.mark.parametrize("filled", [None, True, False])
def test_whole_vocabulary(filled: bool | None, folder: Path):
    """Maps of a whole vocabulary: none, filled, and never filled, which EAGLE's own code drops then."""
    kept = {} if filled is None else {"d2t": np.zeros(VOCABULARY, np.int64), "t2d": np.full(VOCABULARY, filled)}
    source = write(folder / "head", eagle3(drafted=VOCABULARY) | kept, {**EAGLE3, "draft_vocab_size": VOCABULARY})
    assert imported(folder, source).settings["draft_vocabulary"] is None


def test_a_rope_that_changes_within_a_text_is_named(folder: Path):
    rope = {"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    assert "dynamic scaling from 16 tokens on" in said(folder, write(folder / "head", eagle3(), {**EAGLE3, **rope}))


@pytest.mark.parametrize(("theta", "kind"), [(5e5, "linear"), (5e5, "llama3"), (1e4, "linear")])
def test_a_base_that_only_some_projects_read_is_named(theta: float, kind: str, folder: Path):
    rope = {"type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {**EAGLE3, "rope_theta": theta, "rope_scaling": rope}
    text = said(folder, write(folder / "head", eagle3(), config))
    assert ("EAGLE's own code trained this head, set it to 10000" in text) == ((theta, kind) == (5e5, "linear"))


def test_a_head_without_an_lm_head_takes_the_targets(folder: Path):
    found = {name: array for name, array in eagle3(drafted=VOCABULARY).items() if name != "lm_head.weight"}
    assert "so the target's LM head is read" in said(folder, write(folder / "head", found, EAGLE))
    assert not heads.read_head(folder / HEAD, "eagle3").settings["own_head"]
    assert_bitwise(exported(folder, "eagle3")[0], found | {"lm_head.weight": tensors(folder / "hf")["lm_head.weight"]})


def test_variants_of_the_files(folder: Path):
    """A `.bin` file, a prefix, no draft_vocab_size, no t2d, wide heads, rope of its own, the first tokens drafted."""
    first = np.arange(DRAFTED)
    found = eagle3(head_dim=16) | maps(first)
    state = {f"model.{name}": torch.from_numpy(array) for name, array in found.items() if name != "lm_head.weight"}
    state["lm_head.weight"] = torch.from_numpy(found["lm_head.weight"])
    source = write(folder / "head", {}, {**EAGLE, "head_dim": 16, "rope_theta": 5e5})
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    config = imported(folder, source)
    assert (config.model.head_dim, config.model.rope.theta) == (16, 5e5)
    del found["t2d"]
    found |= {"d2t": maps(ids())["d2t"]}
    said(folder, write(folder / "without", found, {**EAGLE3, "head_dim": 16}))
    head = restore_head(loading.load(folder / "ckpt", "float32"), Eagle3(), folder / HEAD)
    np.testing.assert_array_equal(head.ids, ids())


def test_a_window_that_is_off(folder: Path):
    values = {**EAGLE3, "sliding_window": 2048, "use_sliding_window": False}
    imported(folder, write(folder / "head", eagle3(), values))
    said(folder, write(folder / "full", eagle3(), {**EAGLE3, "sliding_window": 9, "layer_types": ["full_attention"]}))
