"""Refusals: their sentences, and that nothing is written."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.convert import hf_config
from tests import hf_models
from tests.convert.commands import assert_bitwise, refused, run, tensors
from tests.convert.test_fuzz import Trap


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("originals")
    for family in ("llama", "llama-tied", "mistral", "mixtral", "qwen2", "qwen3"):
        hf_models.make(family, path / family, num_hidden_layers=2)
    hf_models.make("llama", path / "sharded", num_hidden_layers=2, shard_size="20KB")
    return path


@pytest.fixture
def copy(originals: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A model to damage."""

    def make(name: str) -> Path:
        (tmp_path / "hf").mkdir()
        for file in (originals / name).iterdir():
            (tmp_path / "hf" / file.name).write_bytes(file.read_bytes())
        return tmp_path / "hf"

    return make


def edit_config(path: Path, **values: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **values}))


def edit_tensors(path: Path, **changed: np.ndarray | None) -> None:
    found = {**load_file(path / "model.safetensors"), **changed}
    save_file({k: v for k, v in found.items() if v is not None}, path / "model.safetensors")


def rope(kind: Any, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **values}}


@pytest.mark.parametrize(
    ("family", "values", "words"),
    [
        ("llama", {"quantization_config": {"quant_method": "awq"}}, ["quantization_config: awq"]),
        ("mixtral", {"num_local_experts": 6}, ["experts.5.w", "is missing in"]),
        ("mixtral", {"num_local_experts": 4}, ["experts.4.w", "one too many for a config with 4 experts"]),
        ("mixtral", {"num_experts_per_tok": 7}, ["experts_per_token must be from 1 to 5, not 7"]),
        ("llama", {"model_type": "gemma2"}, ["model_type 'gemma2'", "llama, mistral, mixtral, qwen2, qwen3"]),
        ("llama", {"model_type": None, "architectures": None}, ["model_type None"]),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act 'gelu'"]),
        ("mistral", {"sliding_window": "4096"}, ["a whole number above 0 as 'sliding_window'", "it has '4096'"]),
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, ["layer_types 'chunked_attention'"]),
        (
            "qwen3",
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": None},
            ["layer_types 'sliding_attention'", "only 'full_attention'"],
        ),
        ("llama", rope("yarn", factor=4.0), ["rope type 'yarn'", "default, linear, dynamic, llama3"]),
        ("llama", rope("longrope", short_factor=[1.0]), ["rope type 'longrope'"]),
        ("llama", rope("linear"), ["config.json must give a number above 0 as 'factor'", "None"]),
        ("llama", rope("llama3", factor=8.0), ["'low_freq_factor'"]),
        ("llama", rope("default", mrope_section=[2, 2]), ["'mrope_section'"]),
        ("llama", rope("default", partial_rotary_factor=0.5), ["partial_rotary_factor 0.5"]),
        ("llama", {"rope_condense_ratio": 8}, ["rope_condense_ratio 8 is not supported"]),
        ("llama", {"hidden_size": None}, ["'hidden_size'"]),
        ("llama", {"hidden_size": True}, ["config.json must give a whole number above 0 as 'hidden_size'", "True"]),
        ("llama", {"vocab_size": 10**30}, ["a whole number above 0 as 'vocab_size'"]),
        ("llama", {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 1}, ["[2147483647, 2147483647]"]),
        ("llama", {"rms_norm_eps": float("nan")}, ["config.json must give a number above 0 as 'rms_norm_eps'", "nan"]),
        ("llama", {"num_key_value_heads": "4"}, ["a whole number above 0 as 'num_key_value_heads'", "it has '4'"]),
        ("llama", {"bos_token_id": 96}, ["config.json has bos_token_id 96", "outside the vocabulary of 96"]),
        ("llama", {"eos_token_id": [2, 2**40]}, ["eos_token_id 1099511627776", "outside the vocabulary of 96"]),
        ("llama", {"eos_token_id": "1"}, ["config.json must give a token id as 'eos_token_id'", "it has '1'"]),
        ("llama", {"tie_word_embeddings": "no"}, ["must give true or false as 'tie_word_embeddings'", "'no'"]),
        ("llama", {"rope_parameters": None, "rope_theta": 0}, ["a number above 0 as 'rope_theta'", "it has 0"]),
        ("llama", rope("llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0), ["high_freq_factor must be"]),
        ("llama", rope("dynamic", factor=2.0, original_max_position_embeddings=-1), ["a whole number above 0"]),
        ("llama", {"num_hidden_layers": 10**9}, ["num_layers must be at most 1024, not 1000000000"]),
        ("llama", {"num_hidden_layers": 900}, ["has 900 layers", "its files hold 21 tensors"]),
        ("mixtral", {"num_local_experts": 10**9, "num_experts_per_tok": 2}, ["1000000000 experts", "its files hold"]),
        ("llama", {"model_type": ["llama"]}, ["model_type ['llama'] is not supported"]),
        ("llama", {"architectures": 5}, ["architectures 5 is not supported"]),
        ("qwen2", {"layer_types": 5}, ["layer_types 5 is not supported"]),
        ("llama", rope(["linear"]), ["rope type ['linear'] is not supported"]),
        ("llama", {"num_attention_heads": 5}, ["config.json"]),
        ("llama", {"vocab_size": 97}, ["embed_tokens.weight", "[96, 32]", "[97, 32]"]),
        ("llama", {"intermediate_size": 40}, ["mlp.", "48", "40"]),
        ("llama", {"num_hidden_layers": 3}, ["model.layers.2.", "is missing"]),
        ("llama", {"num_hidden_layers": 1}, ["model.layers.1.", "not part of this model"]),
        ("llama", {"attention_bias": True}, ["self_attn.k_proj.bias", "is missing"]),
        ("llama", {"tie_word_embeddings": True}, ["lm_head.weight", "differs from the embedding"]),
        ("llama-tied", {"tie_word_embeddings": False}, ["lm_head.weight", "is missing"]),
    ],
)
def test_configs(family: str, values: dict, words: list[str], copy: Callable[[str], Path], tmp_path: Path):
    source = copy(family)
    edit_config(source, **values)
    sentence = refused(source, tmp_path / "ckpt")
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_window_that_no_layer_has(family: str, originals: Path):
    config = json.loads((originals / family / "config.json").read_text())
    values = {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2}
    theirs = transformers.AutoConfig.for_model(**{**config, **values, "layer_types": None})
    assert theirs.layer_types == ["full_attention"] * 2
    assert hf_config.to_llama({**config, **values}) == hf_config.to_llama(config)


@pytest.mark.parametrize("window", [9, 999])
@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("mistral", {}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_texts_are_no_longer_than_a_window(
    family: str, values: dict, window: int, copy: Callable[[str], Path], tmp_path: Path
):
    source = copy(family)
    edit_config(source, sliding_window=window, **values)
    done = run("llama", source, tmp_path / "ckpt")
    assert done.code == 0, done.err
    usual = json.loads((source / "config.json").read_text())["max_position_embeddings"]
    assert config_json.read_config(tmp_path / "ckpt").model.max_length == min(window, usual)
    assert ("so texts are limited to the 9 positions of the window" in done.err) == (window == 9)


@pytest.mark.parametrize(("kind", "length"), [("linear", 1024), ("dynamic", 256), ("default", 256)])
def test_the_length_of_vicunas_16k_models(kind: str, length: int, originals: Path):
    """Texts may have max_sequence_length tokens, if max_position_embeddings is the length before linear scaling."""
    config = json.loads((originals / "llama" / "config.json").read_text())
    values = {"max_sequence_length": 1024, "rope_scaling": {"type": kind, "factor": 4.0}}
    found = hf_config.to_llama({**config, "rope_parameters": None, **values})
    assert found.usable_length == length and found.rope.factor == (1 if kind == "default" else 4)
    back = hf_config.from_checkpoint(CheckpointConfig("llama", found, "float32", "float32", "huggingface"))
    assert back["max_position_embeddings"] == 256, "FastChat multiplies it by the factor"
    assert hf_config.to_llama(back) == found
    transformers.AutoConfig.for_model(**back)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": "llama", "vocab_size": 96, "vocab_size": 97}', "key 'vocab_size' is there twice"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ("[1]", "holds no JSON object"),
        ("\xff\xfe", "not valid JSON"),
    ],
)
def test_what_is_no_config(text: str, words: str, copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    (source / "config.json").write_bytes(text.encode("latin-1"))
    sentence = refused(source, tmp_path / "ckpt")
    assert words in sentence and "config.json" in sentence


def test_a_damaged_tokenizer(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    for content in (np.random.default_rng(0).bytes(500), b"", b"{}"):
        (source / "tokenizer.json").write_bytes(content)
        sentence = refused(source, tmp_path / "ckpt")
        assert f"the tokenizer in {source} cannot be read (" in sentence


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({NORM: None}, [NORM, "is missing"]),
        ({"model.layers.1.surprise.weight": np.ones(3, np.float32)}, ["surprise", "not part of this model"]),
        ({NORM: np.ones(31, np.float32)}, [NORM, "[31]", "[32]"]),
        ({NORM: np.full(32, np.nan, np.float32)}, [NORM, "model.safetensors", "NaN"]),
        ({NORM: np.full(32, -np.inf, np.float16)}, [NORM, "NaN or infinite"]),
        ({NORM: np.full(32, np.nan, ml_dtypes.bfloat16)}, [NORM, "NaN or infinite"]),
        ({NORM: np.ones(32, np.int8)}, [NORM, "I8", "float32, bfloat16, float16", "if the checkpoint is quantized"]),
        ({NORM: np.ones(32, np.float64)}, [NORM, "float64", "--dtype float32"]),
        ({NORM: np.ones(32, np.complex64)}, [NORM, "C64"]),
        ({NORM: np.ones(32, bool)}, [NORM, "BOOL"]),
        ({NORM: np.ones(32, ml_dtypes.float8_e4m3fn)}, [NORM, "F8_E4M3"]),
        ({"module.lm_head.weight": np.ones((96, 32), np.float32)}, ["lm_head.weight is twice", "prefix module."]),
    ],
)
def test_tensors(changed: dict, words: list[str], copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    edit_tensors(source, **changed)
    sentence = refused(source, tmp_path / "ckpt")
    assert all(word in sentence for word in words), sentence


def test_narrowing_may_not_overflow(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    edit_tensors(source, **{NORM: np.full(32, 3.4e38, np.float32)})
    assert "too large for --dtype bfloat16" in refused(source, tmp_path / "ckpt", "--dtype", "bfloat16")
    edit_tensors(source, **{NORM: np.full(32, 1e300)})
    assert NORM in refused(source, tmp_path / "ckpt", "--dtype", "float32")


def test_float64(copy: Callable[[str], Path], tmp_path: Path):
    """Quantised, it is rounded first."""
    source = copy("llama")
    edit_tensors(source, **{name: array.astype(float) for name, array in tensors(source).items()})
    assert run("llama", source, tmp_path / "ckpt", "--dtype", "bfloat16", "--quantize", "int8").code == 0
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text())
    assert (config["dtype"], config["source_dtype"]) == ("bfloat16", "bfloat16")


def test_shards(copy: Callable[[str], Path], tmp_path: Path):
    source, out = copy("sharded"), tmp_path / "ckpt"
    index = source / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    shard = good["weight_map"][NORM]

    def with_map(**changes: str) -> None:
        index.write_text(json.dumps({"weight_map": {**good["weight_map"], **changes}}))

    for target in ("../model.safetensors", "/etc/passwd", "a/../../b.safetensors", "c:\\x", "..\\x"):
        with_map(**{NORM: target})
        assert "points outside its directory" in refused(source, out)
    with_map(**{NORM: "model-99999-of-00004.safetensors"})
    assert "shard model-99999-of-00004.safetensors is named in" in refused(source, out)
    other = source / "other.safetensors"
    save_file({NORM: np.zeros(32, np.float32)}, other)
    with_map(elsewhere=other.name)
    assert f"tensor {NORM} is in {shard} and, with other values, in other.safetensors" in refused(source, out)
    index.write_text(json.dumps({"metadata": {}}))
    assert "no weight_map" in refused(source, out)
    index.write_text("{")
    assert "not valid JSON" in refused(source, out)
    index.write_text(json.dumps(good))
    (source / shard).write_bytes((source / shard).read_bytes()[:-10])
    assert f"{shard} is not a whole safetensors file" in refused(source, out)


def test_links_of_a_hub_cache_are_followed(copy: Callable[[str], Path], tmp_path: Path):
    source, blobs = copy("sharded"), tmp_path / "blobs"
    blobs.mkdir()
    for i, file in enumerate(sorted(source.iterdir())):
        file.rename(blobs / str(i))
        file.symlink_to(os.path.relpath(blobs / str(i), source))
    assert run("llama", source, tmp_path / "ckpt").code == 0


@pytest.mark.parametrize("size", [0, 5, 100])
def test_truncated_single_file(size: int, copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "not a whole safetensors file" in refused(source, tmp_path / "ckpt")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # archives of it are refused
def test_bin_files(copy: Callable[[str], Path], tmp_path: Path):
    source, out = copy("llama"), tmp_path / "ckpt"
    state = {name: torch.from_numpy(array) for name, array in tensors(source).items()}
    (source / "model.safetensors").unlink()
    file = source / "pytorch_model.bin"
    torch.save({**state, "trap": Trap(tmp_path / "trapped")}, file)
    assert "loading it could run code" in refused(source, out)
    assert not (tmp_path / "trapped").exists()
    norm = state[NORM]
    for whole, words in (
        (torch.nn.Linear(2, 2), "holds more than tensors (torch.nn.modules.linear.Linear)"),
        ({**state, "step": np.float64(1)}, "multiarray.scalar)"),
        ({**state, "step": 3}, "its key 'step' has a value of type int"),
        ({0: norm}, "its key 0 has a value of type Tensor"),
        ([norm], "is not a state dict but a list"),
        ({"model": state, "state_dict": state}, "several state dicts (state_dict, model)"),
        ({**state, NORM: norm.to("meta")}, "on device meta)"),
        ({**state, NORM: norm.to_sparse()}, "torch.sparse_coo"),
        ({**state, NORM: norm.to(torch.int8)}, "dtype int8"),
    ):
        torch.save(whole, file)
        assert words in refused(source, out), words
    file.write_bytes(pickle.dumps({**state, "trap": Trap(tmp_path / "trapped")}))
    assert "could run code" in refused(source, out)
    assert not (tmp_path / "trapped").exists()
    file.write_bytes(pickle.dumps({"a": 1}))
    assert "is no PyTorch file but a pickle" in refused(source, out)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
    assert "(TorchScript)" in refused(source, out)
    torch.save(state, file)
    file.write_bytes(file.read_bytes()[:-200])
    assert "not a whole PyTorch file" in refused(source, out)


def test_views_and_parameters(copy: Callable[[str], Path], tmp_path: Path):
    """Storage that is shared, transposed or in another order; Parameters; tables of rotary angles of any dtype."""
    source = copy("llama")
    state = {name: torch.from_numpy(array) for name, array in tensors(source).items()}
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    assert run("llama", source, tmp_path / "plain").code == 0
    norms = [name for name in state if "norm" in name]
    shared = torch.cat([state[name] for name in norms])
    views = {name: shared[32 * i : 32 * (i + 1)] for i, name in enumerate(norms)}
    views |= {name: torch.nn.Parameter(t.t().contiguous().t()) for name, t in state.items() if name not in norms}
    table = torch.ones(3, dtype=torch.int8)
    torch.save(views | {"model.rotary_emb.inv_freq": table}, source / "pytorch_model.bin")
    assert run("llama", source, tmp_path / "views").code == 0
    for out in ("plain", "views"):
        assert run("export", tmp_path / out, tmp_path / f"{out}-hf").code == 0
    assert_bitwise(tensors(tmp_path / "views-hf"), tensors(tmp_path / "plain-hf"))


def test_torch_is_an_extra(copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = copy("llama")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert "pip install torch" in refused(source, tmp_path / "ckpt")


def test_a_window_that_is_not_given_is_transformers(copy: Callable[[str], Path]):
    config = json.loads((copy("qwen2") / "config.json").read_text())
    config |= {"use_sliding_window": True, "max_window_layers": 0}
    config.pop("sliding_window", None)
    assert hf_config.to_llama({**config, "max_position_embeddings": 8192}).max_length == 4096


def test_folders(copy: Callable[[str], Path], tmp_path: Path):
    source, out = copy("llama"), tmp_path / "ckpt"
    assert "is not a folder" in refused(tmp_path / "absent", out)
    (tmp_path / "empty").mkdir()
    assert "holds no config.json: it is empty" in refused(tmp_path / "empty", out)
    (source / "model.safetensors").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in refused(source, out)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors.incomplete", "an unfinished download; finish it"),
        ("adapter_model.safetensors", "merge it into its base model"),
        ("model-00001-of-00002.safetensors", "a shard; download the index"),
        ("consolidated.safetensors", "Meta's or Mistral's format; download its params.json"),
        ("onnx/model.onnx", "a compiled model"),
        ("flax_model.msgpack", "another framework's format"),
        ("tf_model.h5", "another framework's format"),
        ("weights.npz", "another framework's format"),
        ("rank0.engine", "a compiled model"),
        ("global_step9/mp_rank_00_model_states.pt", "DeepSpeed"),
        ("pytorch_model_fsdp_0/__0_0.distcp", "FSDP"),
        ("model.fp16.safetensors", "a file of another name"),
        ("weights.pth", "call it pytorch_model.bin"),
        ("BF16/model.gguf", "BF16/model.gguf: a GGUF model; name that file"),
        ("checkpoint-500/config.json", "checkpoint-500/config.json: a model in a folder of its own"),
        ("tokenizer.json", "a tokenizer or processor; download the model"),
        ("README.md", "check that the download is complete"),
    ],
)
@pytest.mark.parametrize("configured", [False, True])
def test_folders_of_something_else(name: str, words: str, configured: bool, tmp_path: Path, originals: Path):
    source = tmp_path / "source"
    (source / name).parent.mkdir(parents=True)
    (source / name).write_bytes(b"x")
    if configured:
        (source / "config.json").write_bytes((originals / "llama" / "config.json").read_bytes())
    sentence = refused(source, tmp_path / "ckpt")
    assert words in sentence and ("neither model.safetensors" if configured else "no config.json") in sentence
    assert words in run("inspect", source).last


def test_a_link_without_its_file(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to("../../blobs/0123")
    assert "model.safetensors is a link to ../../blobs/0123, which is not there" in refused(source, tmp_path / "ckpt")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs(name: str, copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    (source / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 99\n")
    assert f"{name} is a pointer of git-LFS" in refused(source, tmp_path / "ckpt")


def test_a_download_that_reserved_its_space(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    (source / "model.safetensors.aria2").write_bytes(b"")
    assert "model.safetensors is an unfinished download" in refused(source, tmp_path / "ckpt")


def test_output_exists_or_has_no_place(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    (tmp_path / "taken").mkdir()
    assert "exists already" in refused(source, tmp_path / "taken")
    sentence = run("llama", source, tmp_path / "no" / "ckpt")
    assert sentence.code == 2
    assert "does not exist" in sentence.last


def test_checkpoint_as_source_and_source_as_checkpoint(copy: Callable[[str], Path], tmp_path: Path):
    source = copy("llama")
    assert run("llama", source, tmp_path / "ckpt").code == 0
    assert "is a jaxspec checkpoint already" in refused(tmp_path / "ckpt", tmp_path / "again")
    result = run("export", source, tmp_path / "back")
    assert result.code == 2
    assert "not the config of a jaxspec checkpoint" in result.last
    assert not (tmp_path / "back").exists()
