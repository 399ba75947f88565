"""Untrusted files: whatever is wrong with one, conversion ends with one sentence or with a sound model.

Damage that makes another valid file (a digit of a weight, the name of a field that is not read) may pass; what may not
is a traceback, another exit code, or anything written beside a refusal. Of odd folders that transformers reads, the
logits are transformers'.
"""

import contextlib
import dataclasses
import functools
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import strategies as st

from jaxspec.checkpoint import config_json, heads, parameters
from jaxspec.model import kv_cache
from jaxspec.model.attention import causal_mask
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama, forward
from tests import hf_models
from tests.checkpoints import byte_tokenizer
from tests.convert.commands import run, tensors

SETTINGS = hypothesis.settings(
    max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
STRANGE = st.sampled_from([
    None, True, -1, 0, 1, 3, 0.5, 2**31, 2**63, 10**30, float("nan"), float("inf"), "", "4", "../x", [], [1], [None], {}
])  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a small model, by name."""
    folder = tmp_path_factory.mktemp("sound")
    hf_models.make("llama", folder, num_hidden_layers=1, vocab_size=259)
    byte_tokenizer().save_pretrained(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def convert(files: dict[str, bytes], tmp_path: Path) -> Callable[..., None]:
    """Converts these files with some of them changed, and checks how it ends."""

    def check(**changed: bytes) -> None:
        ends_well(tmp_path, {**files, **changed}, "llama")

    return check


def ends_well(path: Path, files: dict[str, bytes], command: str, *args: object) -> None:
    """Converts a folder of these files: into something sound, or with one sentence and nothing written."""
    source, out = path / "source", path / "out" / "converted"
    for folder in (source, out.parent):
        folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (source / name).write_bytes(content)
    found = run(command, source, out, *args)
    assert "Traceback" not in found.err
    if found.code == 0:
        config = config_json.read_config(out) if command == "llama" else heads.read_config(out)
        assert run("inspect", out, "--verify").code == 0 and config.model.norm_eps > 0
        empty(out.parent)
        return
    assert found.code == 2, found.err
    assert found.last.startswith("error: ") and len(found.last) < 1000
    assert list(out.parent.iterdir()) == [], "something was written"


def empty(folder: Path) -> None:
    """Empties a folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@SETTINGS
@hypothesis.given(name=st.sampled_from(FILES), at=st.floats(0, 1, exclude_max=True), bit=st.none() | st.integers(0, 7))
def test_a_flipped_bit_or_a_missing_end(
    name: str, at: float, bit: int | None, files: dict[str, bytes], convert: Callable[..., None]
):
    content = bytearray(files[name])
    if bit is None:
        convert(**{name: bytes(content[: int(at * len(content))])})
        return
    content[int(at * min(len(content), 4000))] ^= 1 << bit  # in a header rather than in a weight
    convert(**{name: bytes(content)})


@hypothesis.settings(SETTINGS, max_examples=12)
@hypothesis.given(data=st.data(), value=STRANGE)
def test_a_strange_value_in_a_config(data: st.DataObject, value: Any, files: dict[str, bytes], convert: Callable):
    name = data.draw(st.sampled_from(FILES[:2]))
    config = json.loads(files[name])
    config[data.draw(st.sampled_from(sorted(config)))] = value
    convert(**{name: json.dumps(config).encode()})


@SETTINGS
@hypothesis.given(
    field=st.sampled_from(["dtype", "shape", "data_offsets"]),
    value=st.one_of(STRANGE, st.sampled_from(["I8", "BOOL", "F64", [2**62, 2**62], [-1], [0, 2**63], [8, 4]])),
)
def test_a_strange_header(field: str, value: Any, files: dict[str, bytes], convert: Callable[..., None]):
    """Huge shapes, wrong dtypes, places outside the file."""
    content = files["model.safetensors"]
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"][field] = value
    text = json.dumps(header).encode()
    convert(**{"model.safetensors": struct.pack("<Q", len(text)) + text + content[8 + length :]})


class Trap:
    """Unpickling this would create a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_a_payload(protocol: int, files: dict[str, bytes], tmp_path: Path):
    source, trapped = tmp_path / "source", tmp_path / "trapped"
    source.mkdir()
    (source / "config.json").write_bytes(files["config.json"])
    (source / "model.safetensors").write_bytes(files["model.safetensors"])
    state: dict[str, Any] = {name: torch.from_numpy(array) for name, array in tensors(source).items()}
    (source / "model.safetensors").unlink()
    for wrapped in (False, True):
        file = source / "pytorch_model.bin"
        if wrapped:
            torch.save({**state, "trap": Trap(trapped)}, file, pickle_protocol=max(protocol, 2))
        else:
            file.write_bytes(pickle.dumps({"trap": Trap(trapped)}, protocol))
        found = run("llama", source, tmp_path / "ckpt")
        assert found.code == 2 and "pytorch_model.bin" in found.last and "Traceback" not in found.err
        assert not trapped.exists() and not (tmp_path / "ckpt").exists()


@SETTINGS
@hypothesis.given(data=st.data(), value=STRANGE)
def test_a_strange_value_in_a_checkpoints_own_config(data: st.DataObject, value: Any, tmp_path: Path):
    """Of a head likewise: it is read whole, or refused by its file."""
    head = data.draw(st.booleans())
    model, dtypes = LlamaConfig(9, 8, 8, 1, 2, 2, 4), ("float32", "float32")
    if head:
        heads.write_config(tmp_path, heads.HeadConfig("eagle", model, *dtypes, {}))
    else:
        config_json.write_config(tmp_path, config_json.CheckpointConfig("llama", model, *dtypes, "meta", 1, (2,)))
    values = json.loads((tmp_path / "config.json").read_text())
    place = data.draw(st.sampled_from([values, values["model"], values["model"]["rope"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = value
    (tmp_path / "config.json").write_text(json.dumps(values))
    with contextlib.suppress(config_json.CheckpointError):
        found = heads.read_config(tmp_path) if head else config_json.read_config(tmp_path)
        assert found.model.norm_eps > 0 and np.isfinite(found.model.rope.theta)


TOKENS = np.random.default_rng(0).integers(0, 96, (1, 40))
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# What a config may hold besides. "kept": the logits of the sound model; "honoured": others, which are transformers';
# a word: refused with that word in the sentence.
EDITS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["LLaMAForCausalLM"]}, "kept"),
    ({"architectures": None}, "kept"),
    ({"model_type": None}, "kept"),
    ({"hidden_act": "swish", "is_causal": True, "use_cache": False, "pretraining_tp": 2}, "kept"),
    ({"attention_dropout": 0.1, "torch_dtype": "float16", "quantization_config": None, "unknown": [1]}, "kept"),
    ({"max_sequence_length": 9, "logit_scale": 3.0, "layer_types": None, "per_layer_config": None}, "kept"),
    ({"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "kept"),
    ({"rope_parameters": None, "rope_scaling": None}, "kept"),
    ({"rope_parameters": {"type": "default"}}, "kept"),
    ({"rope_parameters": None, "rope_theta": 5e5}, "honoured"),
    ({"rope_scaling": LINEAR}, "honoured"),  # rope_parameters stay beside it
    ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}, "honoured"),
    ({"rope_parameters": LLAMA3, "original_max_position_embeddings": 16}, "honoured"),
    ({"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}, "honoured"),
    ({"rms_norm_eps": 0.5}, "honoured"),
    ({"is_causal": False}, "is_causal"),
    ({"per_layer_config": {"0": {"num_attention_heads": 2}}}, "per_layer_config"),
    ({"transformers_weights": "other.safetensors"}, "transformers_weights"),
    ({"quantization": {"bits": 4}}, "quantization"),
    ({"compression_config": {"quant_method": "sparse"}}, "compression_config: sparse"),
    ({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}, "llava"),
]


@dataclasses.dataclass(frozen=True)
class Oddity:
    """A folder of a small model with files as they might be found.

    Attributes:
        family: of `ODD_FAMILIES`.
        edit: number of the config's change in `EDITS`; None: none.
        prefix: before every name.
        missing: a tensor that is in no file.
        surplus: a tensor that is no parameter.
        wide: number of the tensor that is float64, and of one that is bfloat16; None: all are float32.
        files: how many there are: 1 has no index.
        suffix, nested, legacy: safetensors, or a `.bin`, with the state dict inside another and written as before 1.6.
        index: what is done to the index.
        beside: another file in the folder.
    """

    family: str
    edit: int | None
    prefix: str
    missing: str | None
    surplus: str | None
    wide: int | None
    files: int
    suffix: str
    nested: bool
    legacy: bool
    index: str
    beside: str | None


ROTARY, HEAD = "model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"
ODD_FAMILIES = ("llama", "llama-tied", "mistral")
odd_folders = st.builds(
    Oddity,
    family=st.sampled_from(ODD_FAMILIES),
    edit=st.none() | st.integers(0, len(EDITS) - 1),
    prefix=st.sampled_from(["", "", "", "module.", "_orig_mod.", "base_model.model.", "model.", "without model."]),
    missing=st.sampled_from([None, None, None, HEAD, "model.norm.weight", "model.embed_tokens.weight"]),
    surplus=st.sampled_from([None, None, ROTARY, HEAD, "score.weight"]),
    wide=st.none() | st.integers(0, 5),
    files=st.integers(1, 3),
    suffix=st.sampled_from(["safetensors", "safetensors", "bin"]),
    nested=st.booleans(),
    legacy=st.booleans(),
    index=st.sampled_from(["right", "turned", "stale", "surplus", "empty shard", "twice"]),
    beside=st.sampled_from([None, "surplus shard", "stale index", "a .bin", "adapter_config.json"]),
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models whose weights are bfloat16 numbers, so that every float dtype holds them."""
    path = tmp_path_factory.mktemp("originals")
    for family in ODD_FAMILIES:
        model = hf_models.make(family, path / family, num_hidden_layers=1).to(torch.bfloat16).float()
        model.save_pretrained(path / family)
    return path


@torch.inference_mode()
def of_transformers(folder: Path) -> np.ndarray | None:
    """The logits of a folder; None if transformers fails, or parameters are missing."""
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    except Exception:  # transformers has no class for what it refuses
        return None
    return None if found["missing_keys"] else model(torch.from_numpy(TOKENS)).logits.numpy()


@jax.jit
def of_jaxspec(model: Llama, cache: tuple[kv_cache.KV, ...]) -> jax.Array:
    length = TOKENS.shape[1]
    causal = causal_mask(1, length)
    out = forward(model, jnp.asarray(TOKENS), jnp.arange(length)[None], causal, cache, jnp.zeros(1, int))
    return model.logits(out.hidden)


def write_odd(odd: Oddity, original: Path, folder: Path) -> None:
    """Writes the folder."""
    config = json.loads((original / "config.json").read_text())
    change = {} if odd.edit is None else EDITS[odd.edit][0]
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    state = {name: torch.from_numpy(array) for name, array in tensors(original).items()}
    if odd.surplus is not None:
        tied = odd.surplus == HEAD and odd.family == "llama-tied"
        state.setdefault(odd.surplus, state["model.embed_tokens.weight"].clone() if tied else torch.ones(3))
    if odd.missing is not None:
        state.pop(odd.missing, None)
    if odd.wide is not None:
        names = sorted(state)
        state[names[odd.wide]] = state[names[odd.wide]].double()
        state[names[0]] = state[names[0]].bfloat16()
    bare = odd.prefix == "without model."
    rename = lambda name: name.removeprefix("model.") if bare else odd.prefix + name
    state = {rename(name): tensor for name, tensor in state.items()}

    def save(part: dict[str, Any], name: str) -> None:
        if odd.suffix == "safetensors":
            safetensors.torch.save_file(part, folder / name, metadata={"format": "pt"})
        else:
            whole = {"state_dict": part, "epoch": 3} if odd.nested else part
            torch.save(whole, folder / name, _use_new_zipfile_serialization=not odd.legacy)

    stem = "model" if odd.suffix == "safetensors" else "pytorch_model"
    index = folder / f"{stem}.{odd.suffix}.index.json"
    if odd.files == 1:
        save(state, f"{stem}.{odd.suffix}")
    else:
        shard = lambda i: f"{stem}-{i % odd.files}.{odd.suffix}"
        place = {name: i for i, name in enumerate(sorted(state))}
        copied = [sorted(state)[0]] * (odd.index == "twice")
        for i in range(odd.files):
            save({n: t for n, t in state.items() if place[n] % odd.files == i or n in copied}, shard(i))
        listed = {name: shard(i + (odd.index == "turned")) for name, i in place.items()}
        if odd.index == "stale":
            listed = {name: file for name, file in listed.items() if "mlp" not in name}
        elif odd.index == "surplus":
            listed["model.layers.7.rotary_emb.inv_freq"] = shard(0)
        elif odd.index == "empty shard":
            listed[ROTARY] = f"{stem}-9.{odd.suffix}"
            save({}, f"{stem}-9.{odd.suffix}")
        index.write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    if odd.beside == "surplus shard":
        safetensors.torch.save_file({"model.norm.weight": torch.zeros(32)}, folder / "model-99.safetensors")
    elif odd.beside == "stale index" and odd.files == 1:
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "gone.safetensors"}}))
    elif odd.beside == "a .bin" and odd.suffix == "safetensors":
        torch.save({"model.norm.weight": torch.zeros(32)}, folder / "pytorch_model.bin")
    elif odd.beside == "adapter_config.json":
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')


def reason(odd: Oddity) -> str | None:
    """A word of the sentence that refuses a folder; None: it is converted."""
    if odd.beside == "adapter_config.json":
        return "org/base"
    if odd.edit is not None and EDITS[odd.edit][1] not in ("kept", "honoured"):
        return EDITS[odd.edit][1]
    if odd.edit is not None and odd.family == "mistral" and EDITS[odd.edit][0].get("architectures"):
        return "must be MistralForCausalLM"
    lost = odd.missing is not None and not (odd.missing == HEAD and odd.family == "llama-tied")
    return "tensor" if lost or odd.surplus == "score.weight" else None


PLAIN = Oddity("llama", None, "", None, None, None, 1, "safetensors", False, False, "right", None)
SHARDS = {"files": 3}
ALONE: list[dict[str, Any]] = [
    *({"edit": i} for i in range(len(EDITS))),
    *({"prefix": prefix} for prefix in ("module.", "_orig_mod.", "base_model.model.", "model.", "without model.")),
    {"prefix": "without model.", "family": "llama-tied"},
    {"prefix": "without model.", "missing": HEAD},
    {"family": "llama-tied", "surplus": HEAD},
    {"surplus": ROTARY},
    {"wide": 3},
    {"suffix": "bin", "nested": True},
    {"suffix": "bin", "legacy": True},
    {"suffix": "bin", "files": 2, "index": "turned"},
    *({**SHARDS, "index": index} for index in ("turned", "stale", "surplus", "empty shard", "twice")),
    {**SHARDS, "beside": "surplus shard"},
    {"beside": "stale index"},
    {"beside": "a .bin"},
    {"beside": "adapter_config.json"},
]


@pytest.mark.parametrize("change", ALONE, ids=str)
def test_one_oddity(change: dict[str, Any], originals: Path, tmp_path: Path):
    check_odd(dataclasses.replace(PLAIN, **change), originals, tmp_path)


@hypothesis.settings(SETTINGS, max_examples=12)
@hypothesis.given(odd=odd_folders)
def test_several_oddities(odd: Oddity, originals: Path, tmp_path: Path):
    check_odd(odd, originals, tmp_path)


def check_odd(odd: Oddity, originals: Path, tmp_path: Path) -> None:
    """Converts the folder: with transformers' logits, or refused with one sentence that holds the reason."""
    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, out):
        folder.mkdir(exist_ok=True)
        empty(folder)
    original = originals / odd.family
    write_odd(odd, original, source)
    dtype = ("--dtype", "float32") if odd.wide is not None else ()
    found = run("llama", source, out / "ckpt", *dtype)
    assert "Traceback" not in found.err
    if (word := reason(odd)) is not None:
        assert found.code == 2 and word in found.last and found.last.startswith("error: "), found.err
        assert list(out.iterdir()) == []
        return
    assert found.code == 0, found.err
    model = parameters.restore(out / "ckpt", jnp.float32)
    cache = jax.device_put(kv_cache.allocate(model.config, 1, 64, jnp.dtype("float32")), jax.devices()[0])
    ours = of_jaxspec(model, cache)
    expected = [of_transformers(source)]  # None for prefixes and the like, which transformers does not read
    if odd.edit is None or EDITS[odd.edit][1] == "kept":
        expected.append(sound_logits(original))
    for theirs in expected:
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    nested = odd.suffix == "bin" and odd.nested
    assert ("'epoch' beside it ignored" in found.err) == nested
    assert ("code of its own (auto_map)" in found.err) == (odd.edit is not None and "auto_map" in EDITS[odd.edit][0])


@functools.cache
def sound_logits(original: Path) -> np.ndarray | None:
    return of_transformers(original)
