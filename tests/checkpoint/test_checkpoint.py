"""The format on disk: a written checkpoint is read back; errors about anything else name it."""

import dataclasses
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, heads, loading, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.model.config import LlamaConfig, Rope
from jaxspec.model.llama import Llama

MODEL = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=11,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    rope=Rope(theta=5e5, scaling="llama3", factor=8.0, original_length=64),
    qkv_bias=True,
)
CONFIG = CheckpointConfig("llama", MODEL, "float32", "float16", "huggingface", bos=1, eos=(2, 3), pad=None)


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(MODEL, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def saved(model: Llama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    config_json.write_config(path, CONFIG)
    parameters.write_params(path / "params", parameters.module_to_dict(model).items(), group_bytes=60_000)
    return path


def test_a_large_array_is_stored_in_chunks(saved: Path, model: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And is read the same as one that is stored whole."""
    monkeypatch.setattr(parameters, "CHUNK_BYTES", 256)
    parameters.write_params(tmp_path / "params", parameters.module_to_dict(model).items())
    name = "layers.0.mlp.up.kernel"
    stored = [parameters.read_shapes(path / "params")[name].storage_metadata for path in (saved, tmp_path)]
    (rows, columns), (fewer, narrower) = (each.chunk_shape for each in stored)
    assert rows * columns == 16 * 24 and fewer * narrower * 4 <= 256
    whole, chunked = (parameters.load_params(path / "params", parameters.abstract(MODEL)) for path in (saved, tmp_path))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(chunked), strict=True):
        np.testing.assert_array_equal(one, other)


def test_config_survives(saved: Path):
    assert config_json.read_config(saved) == CONFIG
    assert hash(config_json.read_config(saved)) == hash(CONFIG)


def of_model(**changes: Any) -> dict[str, Any]:
    return {"model": {**dataclasses.asdict(MODEL), **changes}}


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"format": "other"}, "jaxspec-convert llama"),
        ({"version": 2}, "version is 2"),
        ({"surprise": 1}, "'surprise' is unknown"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, not 'int8'"),
        ({"model": {}}, "is missing"),
        ({"eos": None}, "config.json is not the config"),
        ({"eos": [2, 40]}, "eos 40 is outside the vocabulary of 40"),
        ({"bos": -1}, "bos -1 is outside the vocabulary of 40"),
        ({"model": [1]}, "key 'model' must be an object"),
        (of_model(num_layers=10**9), "num_layers must be at most 1024, not 1000000000"),
        (of_model(norm_eps=float("nan")), "norm_eps must be a finite number, not nan"),
        (of_model(norm_eps=0.0), r"norm_eps must be above 0, not 0\.0"),
        (of_model(max_length=0), "max_length must be at least 1, not 0"),
        (of_model(rope={"theta": 0.0}), r"rope theta must be above 0, not 0\.0"),
        (of_model(rope={"factor": -1.0}), "rope factor must be above 0"),
    ],
)
def test_wrong_config_is_named(edit: dict, words: str, tmp_path: Path):
    values = {**json.loads(CONFIG.to_json()), **edit}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=words):
        config_json.read_config(tmp_path)


def test_absent_or_torn_config(tmp_path: Path):
    with pytest.raises(CheckpointError, match="No such file or directory; name a folder that `jaxspec-convert"):
        config_json.read_config(tmp_path / "absent")
    (tmp_path / "config.json").write_text(CONFIG.to_json()[:50])
    with pytest.raises(CheckpointError, match="is not the config of a jaxspec checkpoint"):
        config_json.read_config(tmp_path)


def test_parameters_survive(model: Llama, saved: Path):
    expected, found = (parameters.module_to_dict(m) for m in (model, parameters.restore(saved)))
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert isinstance(found[name], jax.Array)
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert {"embedding", "layers.10.mlp.down.kernel", "layers.0.attention.q.bias", "head.kernel"} <= found.keys()


def test_dtype_is_cast_once(model: Llama, saved: Path):
    found = parameters.module_to_dict(parameters.restore(saved, jnp.bfloat16))
    for name, array in parameters.module_to_dict(model).items():
        assert found[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(found[name], array.astype(jnp.bfloat16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float32_is_not_compressed(dtype: str, tmp_path: Path):
    zeros = jnp.zeros((100, 1000), dtype)
    parameters.write_params(tmp_path / "params", [("zeros", zeros)])
    stored = sum(file.stat().st_size for file in (tmp_path / "params").rglob("*") if file.is_file())
    assert (stored >= zeros.nbytes) == (dtype == "float32")


def test_the_speed_of_a_long_load_is_printed(
    model: Llama, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    loading.load(saved)
    assert "a second" not in capsys.readouterr().err
    monkeypatch.setattr(loading, "SLOW", 0.0)
    loading.load(saved)
    size = sum(array.nbytes for array in parameters.module_to_dict(model).values())
    assert re.search(rf"loaded {saved}: {size / 1000:.1f} kB in \d s, .* a second\n", capsys.readouterr().err)


def test_some_arrays(model: Llama, saved: Path):
    found = parameters.read_arrays(saved / "params", ["norm", "layers.2.mlp.up.kernel"])
    assert sorted(found) == ["layers.2.mlp.up.kernel", "norm"]
    np.testing.assert_array_equal(found["layers.2.mlp.up.kernel"], model.layers[2].mlp.up.kernel[...])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qkv_bias": False}, r"layers\.0\.attention\.k\.bias \(and 32 more\) is not part of this model"),
        ({"mlp_bias": True}, r"layers\.0\.mlp\.down\.bias \(and 32 more\) is missing"),
        ({"intermediate_size": 23}, r"layers\.0\.mlp\.\S+ in \S+ has shape .*24.* by the config .*23"),
    ],
)
def test_another_config_than_the_parameters(change: dict, words: str, saved: Path):
    module = parameters.abstract(dataclasses.replace(MODEL, **change))
    with pytest.raises(CheckpointError, match=words):
        parameters.load_params(saved / "params", module)


DAMAGED = "params cannot be read: they are incomplete or damaged; convert or copy the checkpoint again$"


def test_parameters_absent(tmp_path: Path):
    config_json.write_config(tmp_path, CONFIG)
    with pytest.raises(CheckpointError, match=DAMAGED):
        parameters.restore(tmp_path)


def tear(saved: Path, into: Path, name: str) -> None:
    """A copy of a checkpoint in which a file of the parameters lacks its second half."""
    shutil.copytree(saved, into, dirs_exist_ok=True)
    file = into / "params" / "state" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_parameters_damaged(saved: Path, tmp_path: Path):
    tear(saved, tmp_path, "_METADATA")
    with pytest.raises(CheckpointError, match=DAMAGED):
        parameters.restore(tmp_path)


def test_tasks_that_orbax_leaves_behind_log_nothing(caplog: pytest.LogCaptureFixture):
    """Each would be a traceback, printed whenever the task is collected."""
    with pytest.raises(CheckpointError), parameters._reading("params"):
        raise ValueError("torn")
    for what in ("exception=ValueError('DATA_LOSS: ... [tensorstore_spec={}]')", "exception=ValueError('another')"):
        logging.getLogger("asyncio").error("Task exception was never retrieved\n%s", what)
    assert [record.args for record in caplog.records] == [("exception=ValueError('another')",)]


def test_a_command_says_so_in_one_line(saved: Path, tmp_path: Path):
    tear(saved, tmp_path, "manifest.ocdbt")
    options = ["--method", "plain", "--prompt", "x"]
    command = [sys.executable, "-m", "jaxspec.commands.main", "generate", "--target", str(tmp_path), *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert re.search(DAMAGED, found.stderr.splitlines()[-1])


class PybindError(OSError):
    """An error whose `strerror` is a method, as those of pybind11 have it."""

    def strerror(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "torn"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Exception("See full TensorStore details: <bound method>"), DAMAGED),
        (PybindError("torn"), DAMAGED),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of\nmemory"), "params cannot be read: .* Out of memory$"),
        (PermissionError(13, "Permission denied", "x"), "params cannot be read: Permission denied$"),
    ],
)
def test_what_is_no_damage_is_told(error: Exception, words: str, saved: Path, monkeypatch: pytest.MonkeyPatch):
    def load(*_: object) -> None:
        raise error

    monkeypatch.setattr(parameters.ocp, "load", load)
    with pytest.raises(CheckpointError, match=words):
        parameters.restore(saved)


def test_any_module_can_be_saved(tmp_path: Path):
    class Head(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.blocks = nnx.List([nnx.Linear(3, 4, rngs=rngs) for _ in range(2)])

    head = Head(nnx.Rngs(1))
    parameters.write_params(tmp_path / "params", parameters.module_to_dict(head).items())
    found = parameters.load_params(tmp_path / "params", nnx.eval_shape(lambda: Head(nnx.Rngs(0))))
    np.testing.assert_array_equal(found.blocks[1].kernel[...], head.blocks[1].kernel[...])


class Normed(nnx.Module):
    """Its names would not be unique on disk if every scale were an RMSNorm's, and every LM head called `head`."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm, self.rms_norm = nnx.LayerNorm(3, rngs=rngs), nnx.RMSNorm(3, rngs=rngs)
        self.lm_head, self.head = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(3, 4, rngs=rngs)
        self.inner = nnx.Dict(scale=nnx.Param(rngs.normal((3,))), linear=nnx.Linear(3, 4, rngs=rngs))


class Scaled(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.scale = nnx.Param(rngs.normal((3,)))


@pytest.mark.parametrize("kind", [Normed, Scaled])
def test_parameters_with_names_of_a_norm_or_lm_head_survive(kind: Any, tmp_path: Path):
    head = kind(nnx.Rngs(1))
    parameters.write_params(tmp_path / "params", parameters.module_to_dict(head).items())
    found = parameters.load_params(tmp_path / "params", nnx.eval_shape(lambda: kind(nnx.Rngs(0))))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(head))


def test_heads_are_folders_with_a_config(tmp_path: Path):
    assert config_json.head_names(tmp_path) == ()
    for name in ("medusa", "eagle", "half-written", ".eagle.0123abcd.part"):
        (tmp_path / "heads" / name).mkdir(parents=True)
    for name in ("medusa", "eagle", ".eagle.0123abcd.part"):
        (tmp_path / "heads" / name / "config.json").write_text("{}")
    assert config_json.head_names(tmp_path) == ("eagle", "medusa")


def test_bytes_are_exact(model: Llama):
    assert memory.required_bytes(MODEL, jnp.float32) == sum(x.nbytes for x in jax.tree.leaves(model))


def test_what_does_not_fit_is_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch):
    weights = memory.required_bytes(MODEL, jnp.bfloat16)
    monkeypatch.setattr(memory, "available_bytes", lambda _: weights)
    memory.check_fits(MODEL, jnp.bfloat16)
    monkeypatch.setattr(memory, "available_bytes", lambda _: weights - 1)
    with pytest.raises(CheckpointError, match=r"needs 55\.0 kB \(27,520 parameters x 2 bytes = 55\.0 kB\)"):
        memory.check_fits(MODEL, jnp.bfloat16)


def test_available_memory():
    assert 2**20 < memory.available_bytes(jax.devices()[0]) < 2**50

    class Accelerator:
        platform = "tpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 1000, "bytes_in_use": 300}

    assert memory.available_bytes(Accelerator()) == 700


def test_a_path_is_not_taken_for_the_head_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`vdm` is the checkpoint's own head, and `./vdm` the one in the working directory."""
    for folder in (tmp_path / "ckpt" / "heads" / "vdm", tmp_path / "vdm"):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert heads.find_head(Path("ckpt"), "vdm") == Path("ckpt/heads/vdm")
    assert heads.find_head(Path("ckpt"), "./vdm") == Path("vdm")
