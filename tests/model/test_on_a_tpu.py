"""What a TPU computes in a way of its own equals what other devices compute, on a CPU; options of its compiler."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxspec.decoding import decode_state
from jaxspec.model import backend, kv_cache, layers
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.devices import tpus


@pytest.mark.parametrize("axis", [2, 3])
def test_rows_are_written_one_by_one_as_together(axis: int):
    old = jax.random.normal(jax.random.key(0), (3, 2, 8, 8))
    shape = tuple(2 if i == axis else size for i, size in enumerate(old.shape))
    new, start = jax.random.normal(jax.random.key(1), shape), jnp.array([0, 6, 3])
    wanted = kv_cache._write_together(old, new, start, axis)
    np.testing.assert_array_equal(jax.jit(kv_cache._write_by_rows, static_argnums=3)(old, new, start, axis), wanted)


@pytest.mark.parametrize("shape", [(3, 8), (3, 8, 4)])
def test_a_block_is_chosen_as_it_is_written(shape: tuple[int, ...]):
    rows = jax.random.normal(jax.random.key(0), shape)
    block, start = jax.random.normal(jax.random.key(1), (3, 2, *shape[2:])), jnp.array([0, 6, 3])
    wanted = decode_state.write_block(rows, block, start)
    np.testing.assert_array_equal(decode_state._choose_block(rows, block, start), wanted)


def test_a_row_that_gets_company_has_the_same_product_and_slope(monkeypatch: pytest.MonkeyPatch):
    kernel, x = jax.random.normal(jax.random.key(0), (6, 5)), jax.random.normal(jax.random.key(1), (1, 1, 6))

    def loss(x):
        return (layers.fusion_barrier(layers.multiply_padded(x, lambda x: x @ kernel)) ** 2).sum()

    wanted = jax.value_and_grad(loss)(x)
    monkeypatch.setattr(backend, "platform", lambda: "tpu")
    found = jax.value_and_grad(loss)(x)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5), found, wanted)
    jax.vmap(layers.fusion_barrier)(x)


@pytest.mark.parametrize(("value", "on"), [(None, False), ("0", False), ("1", True)])
def test_options_are_off_by_default(value: str | None, on: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAXSPEC_TPU_OPTIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("JAXSPEC_TPU_OPTIONS", value)
    assert backend.chosen_options({"an_option": "1"}) == ({"an_option": "1"} if on else None)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
@pytest.mark.parametrize("options", [backend.TPU_LOOP_OPTIONS, backend.TPU_PREFILL_OPTIONS])
def test_the_compiler_accepts_its_options(options: dict[str, str]):
    x = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=SingleDeviceSharding(tpus(parse_slice("v5e:2x2"))[0]))
    assert jax.jit(jnp.sum, compiler_options=options).lower(x).compile() is not None
