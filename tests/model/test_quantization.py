"""Integer kernels: which kernels are quantised, the rounding error, and that they stay integers everywhere."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.convert import transfer
from jaxspec.convert.readers import Tensor
from jaxspec.model import quantization
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear
from jaxspec.model.llama import Llama
from jaxspec.train.methods import edd, medusa
from tests import hf_models
from tests.convert.commands import refused, run

MODEL = LlamaConfig(
    vocab_size=40, hidden_size=256, intermediate_size=192, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    qkv_bias=True,
)  # fmt: skip
CONFIG = CheckpointConfig("llama", MODEL, "float32", "float32", "jaxspec")
GROUPS = {"int8": 1, "int4": 2}  # of 256 inputs


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(MODEL, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def saved(model: Llama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("floats")
    config_json.write_config(path, CONFIG)
    parameters.write_params(path / "params", module_to_dict(model).items())
    return path


@pytest.fixture(scope="module", params=quantization.KINDS)
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_kernel_is_integers_and_nothing_else_is(model: Llama, how: str):
    found, whole = module_to_dict(quantization.quantized(model, how)), module_to_dict(model)
    assert isinstance(head := model.lm_head, Linear) and isinstance(head.kernel, nnx.Param), "the model is unchanged"
    for name, array in whole.items():
        if not name.endswith(".kernel"):
            assert found[name] is array
            continue
        values, scale = found.pop(f"{name}.values"), found.pop(f"{name}.scale")
        assert values.shape == array.shape
        assert values.dtype == jnp.dtype("int8" if name == "head.kernel" else how)
        assert scale.dtype == jnp.float32
    assert found.keys() == {name for name in whole if not name.endswith(".kernel")}


def test_a_kernel_is_off_by_half_a_step_at_most(model: Llama, how: str):
    kernel = model.layers[0].attention.q.kernel[...]
    values, scale = quantization.to_integers(kernel, how)
    assert scale.shape == (GROUPS[how], 64)
    steps = np.repeat(np.asarray(scale), 256 // GROUPS[how], axis=0)
    error = np.abs(np.asarray(quantization.to_float(values, scale)) - np.asarray(kernel))
    assert (error <= 0.5001 * steps).all()
    assert error.max() > 0.4 * steps.min(), "nothing was rounded"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_are_float32(model: Llama, how: str, dtype: str):
    layer = quantization.quantized(model, how).layers[0].attention.q
    whole = module_to_dict(quantization.quantized(model, how))
    x = jax.random.normal(jax.random.key(1), (2, 3, 256), dtype)
    found = layer(x)
    assert found.dtype == jnp.float32
    kernel = quantization.dense(whole, ["layers.0.attention.q.kernel"])["layers.0.attention.q.kernel"]
    assert layer.bias is not None
    exact = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(layer.bias[...], np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, atol=1e-5 if dtype == "float32" else 5e-2)


def test_abstract_values_say_where_they_may_be_sharded(model: Llama, how: str):
    abstract = parameters.abstract(MODEL, how)
    found = module_to_dict(abstract)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in found.values())
    real = module_to_dict(quantization.quantized(model, how))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
    kernel = abstract.layers[0].attention.o.kernel
    assert isinstance(kernel, quantization.QuantizedKernel)
    assert kernel.values.get_metadata()["axes"] == ("heads", "embed")
    kernel = abstract.layers[0].attention.q.kernel
    assert isinstance(kernel, quantization.QuantizedKernel)
    assert kernel.scale.get_metadata()["axes"] == ("embed" if how == "int4" else None, "heads")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_load_and_from_disk_are_the_same(model: Llama, saved: Path, how: str, dtype: str, tmp_path: Path):
    config_json.write_config(tmp_path, dataclasses.replace(CONFIG, quantize=how))
    parameters.write_params(tmp_path / "params", module_to_dict(quantization.quantized(model, how)).items())
    on_load, stored = load(saved, dtype, quantize=how), load(tmp_path, dtype)
    assert on_load.config.quantize == stored.config.quantize == how
    first, second = module_to_dict(on_load.target), module_to_dict(stored.target)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.dtype == dtype or quantization.is_quantized(name)
        np.testing.assert_array_equal(array, second[name])


def test_tensors_are_quantised_as_they_come(saved: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parameters, "GROUP_BYTES", 50_000)
    in_groups = module_to_dict(parameters.restore(saved, quantize="int8"))
    monkeypatch.undo()
    for name, array in module_to_dict(parameters.restore(saved, quantize="int8")).items():
        np.testing.assert_array_equal(in_groups[name], array)


@pytest.mark.parametrize("shape", [(8, 96), (2, 8, 384)])
def test_bytes_of_a_converted_kernel(shape: tuple[int, ...], how: str):
    """Of one whose inputs 128 does not divide, and of a stack of experts."""
    tensors = {"mlp.up.kernel": Tensor("up", shape, "float32", "file", lambda: np.ones(shape, np.float32))}
    written = sum(array.nbytes for _, array in transfer.stream(tensors, None, how))
    assert transfer.total_bytes(tensors, None, how) == written


def test_bytes(model: Llama):
    size = lambda model, end: sum(x.size for name, x in module_to_dict(model).items() if name.endswith(end))
    scales = {how: 4 * size(quantization.quantized(model, how), ".scale") for how in quantization.KINDS}
    kernels, head = size(model, ".kernel"), 256 * 40
    floats = 2 * (size(model, "") - kernels)
    assert memory.required_bytes(MODEL, "bfloat16", "int8") == kernels + scales["int8"] + floats
    assert memory.required_bytes(MODEL, "bfloat16", "int4") == (kernels - head) // 2 + head + scales["int4"] + floats


def test_refusals(saved: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="can be quantised to int8 or int4, not 'int3'"):
        load(saved, quantize="int3")
    config_json.write_config(tmp_path, dataclasses.replace(CONFIG, quantize="int8"))
    with pytest.raises(CheckpointError, match="holds int8 weights, which cannot become int4"):
        load(tmp_path, quantize="int4")


def test_converted(how: str, tmp_path: Path):
    hf_models.make("llama", tmp_path / "hf")
    assert run("llama", tmp_path / "hf", tmp_path / "floats").code == 0
    assert run("llama", tmp_path / "hf", tmp_path / "ints", "--quantize", how, "--dtype", "bfloat16").code == 0
    assert config_json.read_config(tmp_path / "ints").quantize == how
    on_load = module_to_dict(load(tmp_path / "floats", "bfloat16", quantize=how).target)
    for name, array in module_to_dict(load(tmp_path / "ints", "bfloat16").target).items():
        np.testing.assert_array_equal(array, on_load[name])
    assert f"quantised: {how}" in run("inspect", tmp_path / "ints").out.splitlines()
    assert "holds int" in refused(tmp_path / "ints", tmp_path / "back", command="export")


def test_heads_begin_with_what_the_integers_stand_for(model: Llama, how: str):
    target = quantization.quantized(model, how)
    stood_for = quantization.dense(module_to_dict(target), module_to_dict(model))
    begun = module_to_dict(edd.initial(target, 1))
    for name in ("head.kernel", "layers.0.mlp.up.kernel", "embedding"):
        np.testing.assert_array_equal(begun[f"decoder.{name}"], stood_for[name])
    np.testing.assert_array_equal(
        module_to_dict(medusa.initial(target, 1))["heads.0.head.kernel"], stood_for["head.kernel"]
    )
