"""Meta's layout, rendered here from Hugging Face models independently of the converter's tables."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxspec.convert import llama, meta
from jaxspec.convert.inspect import describe
from tests import hf_models
from tests.convert.commands import assert_bitwise, refused, tensors

LLAMA2 = {"intermediate_size": 96, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
LLAMA3 = {
    "num_key_value_heads": 2,
    "intermediate_size": 112,  # 1.3 x 85, rounded up
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def neighbours(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from halves to neighbours: 0, d/2, 1, d/2 + 1 …, which is how Meta rotates them."""
    order = []
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            order += [head * size + i, head * size + i + size // 2]
    return weight[order]


def write_meta(model, path: Path, shards: int, *, llama3: bool, **params: object) -> None:
    """Saves a Hugging Face model as Meta would have: `shards` files, and params.json with `params` on top."""
    c, state = model.config, model.state_dict()
    common = {"dim": c.hidden_size, "n_layers": c.num_hidden_layers, "n_heads": c.num_attention_heads}
    path.mkdir()
    (path / "params.json").write_text(json.dumps({**common, "norm_eps": c.rms_norm_eps, **params}))
    files = [{} for _ in range(shards)]

    def put(name: str, weight: torch.Tensor, axis: int | None) -> None:
        parts = [weight] * shards if axis is None else torch.chunk(weight, shards, axis)
        for file, part in zip(files, parts, strict=True):
            file[name] = part.clone()

    put("tok_embeddings.weight", state["model.embed_tokens.weight"], 0 if llama3 else 1)
    put("norm.weight", state["model.norm.weight"], None)
    if "lm_head.weight" in state:
        put("output.weight", state["lm_head.weight"], 0)
    put("rope.freqs", torch.ones(4), None)
    for i in range(c.num_hidden_layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        put(f"{ours}attention_norm.weight", state[f"{theirs}input_layernorm.weight"], None)
        put(f"{ours}ffn_norm.weight", state[f"{theirs}post_attention_layernorm.weight"], None)
        attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
        put(f"{ours}attention.wq.weight", neighbours(state[f"{attention}q_proj.weight"], c.num_attention_heads), 0)
        put(f"{ours}attention.wk.weight", neighbours(state[f"{attention}k_proj.weight"], c.num_key_value_heads), 0)
        put(f"{ours}attention.wv.weight", state[f"{attention}v_proj.weight"], 0)
        put(f"{ours}attention.wo.weight", state[f"{attention}o_proj.weight"], 1)
        put(f"{ours}feed_forward.w1.weight", state[f"{mlp}gate_proj.weight"], 0)
        put(f"{ours}feed_forward.w2.weight", state[f"{mlp}down_proj.weight"], 1)
        put(f"{ours}feed_forward.w3.weight", state[f"{mlp}up_proj.weight"], 0)
    for i, file in enumerate(files):
        torch.save(file, path / f"consolidated.{i:02}.pth")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("llama3", "settings", "params"),
    [
        (False, LLAMA2, {"multiple_of": 16, "vocab_size": -1}),
        (
            True,
            LLAMA3,
            {
                "multiple_of": 16,
                "ffn_dim_multiplier": 1.3,
                "n_kv_heads": 2,
                "vocab_size": 96,
                "rope_theta": 500000.0,
                "use_scaled_rope": True,
            },
        ),
    ],
    ids=["llama2", "llama3"],
)
def test_same_as_hugging_face(shards: int, llama3: bool, settings: dict, params: dict, tmp_path: Path):
    model = hf_models.make("llama", tmp_path / "hf", dtype="bfloat16", **settings)
    write_meta(model, tmp_path / "meta", shards, llama3=llama3, **params)
    config = llama.convert(tmp_path / "meta", tmp_path / "ckpt")
    expected = llama.plan(tmp_path / "hf").config
    assert (config.model, config.dtype, config.eos) == (expected.model, "bfloat16", (2,))
    assert config.source_format == "meta"
    llama.export(tmp_path / "ckpt", tmp_path / "back")
    assert_bitwise(tensors(tmp_path / "back"), tensors(tmp_path / "hf"))


def test_tied_embedding_is_repeated_in_the_file(tmp_path: Path):
    model = hf_models.make("llama-tied", tmp_path / "hf", intermediate_size=96)
    write_meta(model, tmp_path / "meta", 1, llama3=True, multiple_of=32)
    assert llama.plan(tmp_path / "meta").config.model.tie_embeddings


def rope_factor(dim: int) -> float:
    return meta._rope({"dim": dim, "rope_theta": 5e5, "use_scaled_rope": True}).factor


def test_scaling_factor_is_told_by_width():
    assert [rope_factor(dim) for dim in (2048, 3072, 4096, 8192, 16384)] == [32, 32, 8, 8, 8]


@pytest.mark.parametrize(
    ("params", "length"),
    [
        ({"norm_eps": 1e-6, "n_layers": 32}, 2048),
        ({"norm_eps": 1e-5, "n_layers": 80}, 2048),
        ({"norm_eps": 1e-5, "n_layers": 80, "n_kv_heads": 8}, 4096),
        ({"norm_eps": 1e-5, "n_layers": 32}, 4096),
        ({"norm_eps": 1e-5, "n_layers": 32, "rope_theta": 1000000}, 16384),
        ({"norm_eps": 1e-5, "n_layers": 32, "rope_theta": 500000.0}, 8192),
        ({"norm_eps": 1e-5, "n_layers": 32, "rope_theta": 500000.0, "use_scaled_rope": True}, 131072),
    ],
)
def test_length_is_told_by_release(params: dict, length: int):
    assert meta._max_length(params) == length


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = hf_models.make("llama", tmp_path / "hf", num_hidden_layers=1, **LLAMA2)
    write_meta(model, tmp_path / "meta", 2, llama3=False, multiple_of=16)
    return tmp_path / "meta"


def rewrite(file: Path, **tensors_: torch.Tensor | None) -> None:
    """Replaces tensors of a shard, or drops those that are None."""
    state = {**torch.load(file, weights_only=True), **tensors_}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, file)


def test_refusals(source: Path, tmp_path: Path):
    out, first, second = tmp_path / "ckpt", source / "consolidated.00.pth", source / "consolidated.01.pth"
    good = {file: file.read_bytes() for file in (first, second, source / "params.json")}

    def check(*words: str) -> None:
        sentence = refused(source, out)
        assert all(word in sentence for word in words), sentence
        for file, content in good.items():
            file.write_bytes(content)

    rewrite(second, **{"layers.0.attention.wq.weight": None})
    check("layers.0.attention.wq.weight", "consolidated.01.pth")
    rewrite(first, **{"layers.0.attention.wq.weight": torch.ones(16, 7)})
    check("layers.0.attention.wq.weight", "do not join")
    for file in (first, second):
        rewrite(file, **{"layers.0.feed_forward.experts.weight": torch.ones(2)})
    check("layers.0.feed_forward.experts.weight", "not part of a LLaMA")
    for file in (first, second):
        rewrite(file, **{"layers.0.ffn_norm.weight": None})
    check("layers.0.ffn_norm.weight", "is missing")
    second.write_bytes(good[second][:-100])
    check("consolidated.01.pth", "not a whole PyTorch file")
    params = json.loads(good[source / "params.json"])
    (source / "params.json").write_text(json.dumps({**params, "moe": {"num_experts": 8}}))
    check("'moe'", "params.json")
    (source / "params.json").write_text(json.dumps({**params, "n_heads": None}))
    check("'n_heads'", "params.json")
    first.unlink()
    second.unlink()
    check("no consolidated.*.pth")


MISTRAL: dict[str, object] = {"hidden_dim": 48, "head_dim": 16, "n_kv_heads": 2, "vocab_size": 96, "rope_theta": 1e6}


@pytest.fixture
def mistrals(tmp_path: Path) -> Path:
    """Two folders of one model: `hf` in Hugging Face's format, `own` in Mistral's."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    model = hf_models.make("mistral", tmp_path / "hf", head_dim=16, rope_parameters=rope, max_position_embeddings=32768)
    write_meta(model, tmp_path / "own", 1, llama3=True, **MISTRAL)
    old = tmp_path / "own" / "consolidated.00.pth"
    save_file(torch.load(old, weights_only=True), tmp_path / "own" / "consolidated.safetensors")
    old.unlink()
    return tmp_path


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("config", [False, True])
def test_mistrals_own_format(shards: bool, config: bool, mistrals: Path):
    own, whole = mistrals / "own", mistrals / "own" / "consolidated.safetensors"
    if shards:
        state, files = load_file(whole), ("consolidated-1.safetensors", "consolidated-2.safetensors")
        place = {name: files[i % 2] for i, name in enumerate(state)}
        for file in files:
            save_file({name: tensor for name, tensor in state.items() if place[name] == file}, own / file)
        whole.with_name(f"{whole.name}.index.json").write_text(json.dumps({"weight_map": place}))
        whole.unlink()
    if config:  # of a download without the weights beside it
        (own / "config.json").write_bytes((mistrals / "hf" / "config.json").read_bytes())
    assert "family: mistral" in describe(own)
    found = llama.convert(own, mistrals / "ckpt")
    assert (found.family, found.model) == ("mistral", llama.plan(mistrals / "hf").config.model)
    llama.export(mistrals / "ckpt", mistrals / "back")
    assert_bitwise(tensors(mistrals / "back"), tensors(mistrals / "hf"))


def test_mistrals_special_tokens_are_not_llama3s(mistrals: Path):
    model = dataclasses.replace(llama.plan(mistrals / "own").config.model, vocab_size=131072)
    assert meta.special_tokens("mistral", model) == {"bos": 1, "eos": (2,)}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"sliding_window": 4096}, "'sliding_window': 4096"),
        ({"moe": {"num_experts": 8}}, "'moe': {'num_experts': 8}"),
        ({"vision_encoder": {"hidden_size": 8}}, "'vision_encoder'"),
        ({"model_type": "mamba"}, "'model_type': 'mamba'"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "'quantization'"),
        ({"rope_theta": None}, "no 'rope_theta'"),
        ({"lora": None, "moe": None, "sliding_window": None, "model_type": "transformer"}, None),
    ],
)
def test_mistrals_settings(params: dict, words: str | None, mistrals: Path):
    file = mistrals / "own" / "params.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **params}))
    if words is None:
        llama.convert(mistrals / "own", mistrals / "ckpt")
    else:
        sentence = refused(mistrals / "own", mistrals / "ckpt")
        assert words in sentence and "Hugging Face release" in sentence


def test_mistrals_folders_are_whole(mistrals: Path):
    own = mistrals / "own"
    state = load_file(own / "consolidated.safetensors")
    torch.save(state, own / "consolidated.00.pth")
    assert "consolidated.00.pth and consolidated.safetensors" in refused(own, mistrals / "ckpt")
    (own / "consolidated.00.pth").unlink()
    del state["output.weight"]
    save_file(state, own / "consolidated.safetensors")
    assert "tensor output.weight is missing" in refused(own, mistrals / "ckpt")
