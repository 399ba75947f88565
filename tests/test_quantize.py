"""Kernels as integers: which, how near they come, and that they stay integers wherever they go."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec import checkpoint, quantize
from jaxspec.checkpoint import CheckpointConfig, CheckpointError, module_to_dict
from jaxspec.config import LlamaConfig
from jaxspec.llama import Linear, Llama, linear
from jaxspec.loading import load

MODEL = LlamaConfig(
    vocab_size=40,
    hidden_size=256,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    qkv_bias=True,
)
CONFIG = CheckpointConfig("llama", MODEL, "float32", "float32", "jaxspec")
GROUPS = {"int8": 1, "int4": 2}  # of 256 inputs


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(MODEL, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def saved(model: Llama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("floats")
    checkpoint.write_config(path, CONFIG)
    checkpoint.write_params(path / "params", module_to_dict(model).items())
    return path


@pytest.fixture(scope="module", params=quantize.KINDS)
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_kernel_is_integers_and_nothing_else_is(model: Llama, how: str):
    found, whole = module_to_dict(quantize.quantized(model, how)), module_to_dict(model)
    assert isinstance(model.head, Linear) and isinstance(model.head.kernel, nnx.Param), "the model itself is unchanged"
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
    values, scale = quantize.to_integers(kernel, how)
    assert scale.shape == (GROUPS[how], 64)
    steps = np.repeat(np.asarray(scale), 256 // GROUPS[how], axis=0)
    error = np.abs(np.asarray(quantize.to_float(values, scale)) - np.asarray(kernel))
    assert (error <= 0.5001 * steps).all()
    assert error.max() > 0.4 * steps.min(), "nothing was rounded"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_keep_their_dtype(model: Llama, how: str, dtype: str):
    layer = quantize.quantized(model, how).layers[0].attention.q
    whole = module_to_dict(quantize.quantized(model, how))
    x = jax.random.normal(jax.random.key(1), (2, 3, 256), dtype)
    found = linear(x, layer)
    assert found.dtype == x.dtype
    kernel = quantize.dense(whole, ["layers.0.attention.q.kernel"])["layers.0.attention.q.kernel"]
    exact = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(layer.bias[...], np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, atol=1e-5 if dtype == "float32" else 5e-2)


def test_a_stack_is_quantised_as_its_kernels_are(model: Llama, how: str):
    kernels = jnp.stack([layer.mlp.up.kernel[...] for layer in model.layers])
    each = [quantize.to_integers(kernel, how) for kernel in kernels]
    for together, apart in zip(quantize.to_integers(kernels, how), zip(*each, strict=True), strict=True):
        np.testing.assert_array_equal(together, jnp.stack(apart))


def test_abstract_values_say_where_they_may_be_sharded(model: Llama, how: str):
    abstract = checkpoint.abstract(MODEL, how)
    found = module_to_dict(abstract)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in found.values())
    real = module_to_dict(quantize.quantized(model, how))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
    kernel = abstract.layers[0].attention.o.kernel
    assert isinstance(kernel, quantize.QuantizedKernel)
    assert kernel.values.get_metadata()["axes"] == ("heads", "embed")
    kernel = abstract.layers[0].attention.q.kernel
    assert isinstance(kernel, quantize.QuantizedKernel)
    assert kernel.scale.get_metadata()["axes"] == ("embed" if how == "int4" else None, "heads")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_load_and_from_disk_are_the_same(model: Llama, saved: Path, how: str, dtype: str, tmp_path: Path):
    checkpoint.write_config(tmp_path, dataclasses.replace(CONFIG, quantize=how))
    checkpoint.write_params(tmp_path / "params", module_to_dict(quantize.quantized(model, how)).items())
    on_load, stored = load(saved, dtype, quantize=how), load(tmp_path, dtype)
    assert on_load.config.quantize == stored.config.quantize == how
    first, second = module_to_dict(on_load.target), module_to_dict(stored.target)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert array.dtype == dtype or quantize.is_quantized(name)
        np.testing.assert_array_equal(array, second[name])


def test_tensors_are_quantised_as_they_come(saved: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "GROUP_BYTES", 50_000)
    in_groups = module_to_dict(checkpoint.restore(saved, quantize="int8"))
    monkeypatch.undo()
    for name, array in module_to_dict(checkpoint.restore(saved, quantize="int8")).items():
        np.testing.assert_array_equal(in_groups[name], array)


def test_bytes(model: Llama):
    kernels = sum(x.size for name, x in module_to_dict(model).items() if name.endswith(".kernel"))
    floats = sum(x.size for name, x in module_to_dict(model).items()) - kernels
    head, scales = (
        256 * 40,
        lambda how: sum(
            x.size for name, x in module_to_dict(quantize.quantized(model, how)).items() if name.endswith(".scale")
        ),
    )
    assert checkpoint.required_bytes(MODEL, "bfloat16", "int8") == kernels + 4 * scales("int8") + 2 * floats
    assert checkpoint.required_bytes(MODEL, "bfloat16", "int4") == (
        (kernels - head) // 2 + head + 4 * scales("int4") + 2 * floats
    )


def test_refusals(saved: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="can be quantised to int8 or int4, not 'int3'"):
        load(saved, quantize="int3")
    checkpoint.write_config(tmp_path, dataclasses.replace(CONFIG, quantize="int8"))
    with pytest.raises(CheckpointError, match="holds int8 weights, from which int4 cannot be made"):
        load(tmp_path, quantize="int4")
