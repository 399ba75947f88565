"""GGUF files: models return with every bit, and whatever cannot be computed is refused by name."""

import contextlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import constants, quants
from hypothesis import strategies as st

from jaxspec.checkpoint import config_json, parameters
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.convert import gguf as ours
from jaxspec.convert import gguf_tokenizer, llama
from jaxspec.convert.readers import Tensor
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from tests import hf_models
from tests.convert import gguf_files, record_gguf_ids
from tests.convert.commands import refused, run

KEY = "tokenizer.ggml."
# LLaMA 3.1's.
ROPE = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """The same parameters, bit for bit."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        one, other = tensor.read(), right[name].read()
        assert (one.shape, one.dtype, tensor.dtype) == (other.shape, other.dtype, right[name].dtype), name
        assert one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize(
    "family", ["llama", "llama-tied", "llama-gqa-headdim", "linear-rope", "codellama", "mistral", "qwen2", "qwen3"]
)
def test_a_model_is_what_it_was_as_safetensors(family: str, tmp_path: Path):
    model = hf_models.make(family, tmp_path / "hf")
    gguf_files.model(tmp_path / "m.gguf", model)
    theirs, found = llama.plan(tmp_path / "hf"), llama.plan(tmp_path / "m.gguf")
    assert found.config.model == theirs.config.model
    assert found.config.family == {"mistral": "llama"}.get(theirs.config.family, theirs.config.family)
    assert_same(found.tensors, theirs.tensors)


def test_logits_with_the_factors_of_llama_3(tmp_path: Path):
    model = hf_models.make("llama3-rope", tmp_path / "hf", num_key_value_heads=2, rope_parameters=ROPE)
    gguf_files.model(tmp_path / "m.gguf", model)
    result = run("llama", tmp_path / "m.gguf", tmp_path / "ckpt")
    assert result.code == 0, result.err
    assert "no tokenizer" in result.err
    config = config_json.read_config(tmp_path / "ckpt")
    assert (config.source_format, config.dtype, config.source_dtype) == ("gguf", "float32", "float32")
    tokens = np.random.default_rng(0).integers(0, 96, (1, 64))
    read = parameters.restore(tmp_path / "ckpt", jnp.dtype("float32"))
    cache = kv.allocate(read.config, 1, 64, jnp.dtype("float32"))

    @jax.jit
    def logits(read: Llama, tokens: jax.Array, cache: Any):
        width = tokens.shape[1]
        out = forward(read, tokens, jnp.arange(width)[None], causal_mask(1, width), cache, jnp.zeros(1, int))
        return read.logits(out.hidden)

    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(logits(read, tokens, cache), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("hidden_size", [256, 512])  # of four heads
def test_published_scalings_are_recognised(factor: float, hidden_size: int, tmp_path: Path):
    rope = {**ROPE, "factor": factor}
    model = hf_models.make("llama3-rope", tmp_path / "hf", hidden_size=hidden_size, rope_parameters=rope)
    gguf_files.model(tmp_path / "m.gguf", model)
    assert llama.plan(tmp_path / "m.gguf").config.model == llama.plan(tmp_path / "hf").config.model


@pytest.mark.parametrize("factors", [[1, 2, 3, 8], [1, 1, 1, 8.001], [1, 8, 8], [1, np.nan, 8, 8]], ids=str)
def test_other_factors_are_refused(factors: list[float], tmp_path: Path):
    model = hf_models.make("llama3-rope", tmp_path / "hf", num_hidden_layers=1)
    arrays = gguf_files.tensors(model) | {"rope_freqs.weight": np.array(factors, np.float32)}
    gguf_files.write(tmp_path / "m.gguf", gguf_files.settings(model.config), arrays)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        llama.plan(tmp_path / "m.gguf")


KINDS = [kind for kind in Type if kind in quants._type_traits]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_type_that_the_package_dequantises(kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    values, size = constants.GGML_QUANT_SIZES[kind]
    stored = np.random.default_rng(0).integers(0, 60, (40, 512 // values * size), np.uint8)  # no scale is infinite
    gguf_files.write(tmp_path / "m.gguf", {"general.architecture": "llama"}, {"x": (stored, kind)})
    monkeypatch.setattr(ours, "_BLOCK", 512 * 7)
    tensor = ours.open_gguf(tmp_path / "m.gguf").tensors["x"]
    assert tensor.shape == (40, 512)
    expected = quants.dequantize(stored, kind)
    if kind == Type.BF16:
        expected = stored.view(ml_dtypes.bfloat16)
    assert tensor.dtype == expected.dtype == tensor.read().dtype
    assert tensor.read().tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "kind"), [("float16", Type.F16), ("bfloat16", Type.BF16)])
def test_halves_stay_as_they_are(dtype: str, kind: Type, tmp_path: Path):
    model = hf_models.make("llama", tmp_path / "hf", dtype=dtype)
    halved = lambda array: (array.astype(dtype).view(np.uint8), kind) if array.ndim == 2 else array
    arrays = {name: halved(array) for name, array in gguf_files.tensors(model).items()}
    gguf_files.write(tmp_path / "m.gguf", gguf_files.settings(model.config), arrays)
    plan, theirs = llama.plan(tmp_path / "m.gguf"), llama.plan(tmp_path / "hf")
    assert plan.config.dtype == dtype
    for name, tensor in plan.tensors.items():
        array = tensor.read()
        assert tensor.dtype == array.dtype == (dtype if array.ndim == 2 else "float32")
        assert np.array_equal(array, theirs.tensors[name].read()), name


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer."""
    path = tmp_path_factory.mktemp("gguf")
    tokenizer = record_gguf_ids.vocabulary("smollm") | {"tokenizer.chat_template": "{{ messages }}"}
    model = hf_models.make("llama", path / "hf", num_hidden_layers=1, vocab_size=len(tokenizer[f"{KEY}tokens"]))
    gguf_files.model(path / "m.gguf", model, tokenizer)
    return path / "m.gguf"


def changed(file: Path, out: Path, metadata: dict[str, Any], **arrays: Any) -> Path:
    """A copy with other metadata (None: without) and more tensors."""
    opened = ours.open_gguf(file)
    values = {key: value for key, value in {**opened.metadata, **metadata}.items() if value is not None}
    gguf_files.write(out, values, {name: t.read() for name, t in opened.tensors.items()} | arrays)
    return out


def test_a_checkpoint_has_the_tokenizer_of_its_file(file: Path, tmp_path: Path):
    (folder := tmp_path / "one").mkdir()
    shutil.copy(file, folder)
    (folder / "config.json").write_text("{}")
    assert run("llama", folder, tmp_path / "ckpt").code == 0
    config, size = config_json.read_config(tmp_path / "ckpt"), len(ours.open_gguf(file).metadata[f"{KEY}tokens"])
    assert (config.bos, config.eos, config.model.vocab_size) == (size - 4, (size - 3,), size)
    expected = json.loads(record_gguf_ids.FILE.read_text())["ids"]["smollm"]
    for source in (None, file, folder):
        if source is not None:
            (tmp_path / "ckpt" / "tokenizer.json").write_text("{}")
            assert run("tokenizer", source, tmp_path / "ckpt").code == 0
        assert (tokenizer := load_tokenizer(tmp_path / "ckpt")) is not None
        assert [tokenizer.encode(text) for text in record_gguf_ids.PAGE] == expected
    for described in (run("inspect", source).out for source in (file, folder)):
        assert "format: GGUF" in described
        assert "tokenizer: yes" in described


def test_another_tokenizer_can_be_named(file: Path, tmp_path: Path):
    novel = changed(file, tmp_path / "m.gguf", {f"{KEY}pre": "novel"})
    assert "the pre-tokenizer 'novel'" in refused(novel, tmp_path / "ckpt")
    run("llama", file, tmp_path / "other")
    assert run("llama", novel, tmp_path / "ckpt", "--tokenizer", tmp_path / "other").code == 0
    assert (tmp_path / "ckpt" / "tokenizer.json").read_bytes() == (tmp_path / "other" / "tokenizer.json").read_bytes()
    shutil.copy(novel, tmp_path / "other")  # a GGUF file beside the named tokenizer is not read for one
    assert run("llama", novel, tmp_path / "again", "--tokenizer", tmp_path / "other").code == 0


@pytest.mark.parametrize(
    ("key", "neutral", "other"),
    [
        ("expert_count", 0, 8),
        ("attention.causal", True, False),
        ("attention.sliding_window", 0, 64),
        ("attention.sliding_window", 256, 255),
        ("attention.value_length", 8, 16),
        ("rope.dimension_count", 8, 4),
        ("rope.scaling.type", "none", "yarn"),
        ("logit_scale", 1.0, 0.5),
        ("rope.scaling.finetuned", True, None),
        ("novel", None, 0),
        ("attention.head_count", 4, [4, 4]),
        ("rope.freq_base", 10000.0, -1.0),
        ("rope.scaling.factor", 1.0, -2.0),
        ("attention.layer_norm_rms_epsilon", 1e-6, 0.0),
    ],
)
def test_settings_are_neutral_or_refused_by_name(key: str, neutral: Any, other: Any, file: Path, tmp_path: Path):
    if neutral is not None:
        assert llama.plan(changed(file, tmp_path / "a.gguf", {f"llama.{key}": neutral})).config.model == (
            llama.plan(file).config.model
        )
    if other is not None:
        with pytest.raises(CheckpointError) as error:
            llama.plan(changed(file, tmp_path / "b.gguf", {f"llama.{key}": other}))
        assert key.rpartition(".")[2] in str(error.value).replace(" ", "_")


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({"general.architecture": "gemma3"}, {}, "the architecture 'gemma3'; of GGUF files llama, qwen2, qwen3"),
        ({"general.type": "adapter"}, {}, "its general.type is 'adapter'"),
        ({}, {"blk.0.attn_qkv.weight": np.zeros((4, 4), np.float32)}, "blk.0.attn_qkv.weight"),
        ({}, {"x": (np.zeros((4, 40), np.uint8), Type.Q8_1)}, "tensor x in"),
        ({"split.count": 3}, {}, "is not called NAME-00001-of-00003.gguf"),
    ],
)
def test_what_is_another_model_is_refused(
    metadata: dict[str, Any], tensors: dict[str, Any], words: str, file: Path, tmp_path: Path
):
    with pytest.raises(CheckpointError) as error:
        llama.plan(changed(file, tmp_path / "m.gguf", metadata, **tensors))
    assert words in str(error.value)


def with_count(whole: bytes, count: int) -> bytes:
    """A file with another length of the list of its tokens' types."""
    at = whole.index(name := f"{KEY}token_type".encode()) + len(name) + 8
    return whole[:at] + struct.pack("<Q", count) + whole[at + 8 :]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda whole: b"", "is not a whole GGUF file (cannot mmap an empty file)"),
        (lambda whole: b"version https://git-lfs.github.com/spec/v1\n", "pointer of git-LFS"),
        (lambda whole: b"lmgg" + whole[4:], "is no GGUF file: it begins with b'lmgg'"),
        (
            lambda whole: whole[:4] + struct.pack(">I", 3) + whole[8:],
            "version 50331648 of the format; only 2 and 3 in little-endian",
        ),
        (lambda whole: whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1"),
        (lambda whole: whole[:100], "4 bytes are expected at byte 97 of 100"),
        (lambda whole: whole[:-100], "is not a whole GGUF file (tensor"),
        (lambda whole: whole.replace(b"llama.context_length", b"llama.block_count\0\0\0"), "context_length"),
        (lambda whole: with_count(whole, 2**40), "4398046511104 bytes are expected"),
        (lambda whole: with_count(whole, 2**22 + 1) + bytes(2**25), "16777220 bytes are expected"),
        (lambda whole: whole.replace(b"llama.context_length", b"llama.context_lengt\xff"), "can't decode byte 0xff"),
    ],
)
def test_damage_is_one_sentence(content: Any, words: str, file: Path, tmp_path: Path):
    (tmp_path / "m.gguf").write_bytes(content(file.read_bytes()))
    assert words in refused(tmp_path / "m.gguf", tmp_path / "ckpt")


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_any_damage_is_a_sentence(data: st.DataObject, file: Path, tmp_path: Path):
    whole = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "m.gguf"
    damaged.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    with contextlib.suppress(CheckpointError):
        llama.plan(damaged)
        gguf_tokenizer.files(ours.open_gguf(damaged).metadata, damaged.name)


def test_shards_are_read_together_from_each(tmp_path: Path):
    model = hf_models.make("llama", tmp_path / "hf")
    gguf_files.model(tmp_path / "m.gguf", model, split_max_tensors=10)
    shards = sorted(tmp_path.glob("m-*.gguf"))
    assert len(shards) > 2
    whole = llama.plan(tmp_path / "hf")
    for source in (*shards, tmp_path):  # the folder holds one model
        assert_same(llama.plan(source).tensors, whole.tensors)
    shards[1].unlink()
    assert f"{shards[1].name} is not beside it" in refused(shards[0], tmp_path / "ckpt")


def test_of_several_models_in_a_folder_one_must_be_named(file: Path, tmp_path: Path):
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a-Q4_K_M.gguf", "b-Q8_0.gguf"):
        (folder / name).write_bytes(file.read_bytes())
    assert "several GGUF models, a-Q4_K_M.gguf, b-Q8_0.gguf" in refused(folder, tmp_path / "ckpt")
    (folder / "b-Q8_0.gguf").rename(folder / "sha256-0123")  # as Ollama calls them
    assert llama.plan(folder / "sha256-0123").config == llama.plan(folder).config == llama.plan(file).config


def test_without_the_package_there_is_a_sentence(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert "pip install gguf" in refused(file, tmp_path / "ckpt")
