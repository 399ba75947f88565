"""The TPU compiler's options: used where the program is for a TPU, and left out if the compiler lacks one."""

import importlib.util
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from jaxspec.decoding import tpu_options
from jaxspec.model.sharding import make_mesh
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.devices import tpus

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")


@tpu_options.jit(tpu_options.LOOP, static_argnames="scale")
def scaled(scale: int, x: jax.Array) -> jax.Array:
    return scale * x.sum()


@pytest.fixture
def asked_anew() -> Iterator[None]:
    tpu_options.understood.cache_clear()
    yield
    tpu_options.understood.cache_clear()


def test_a_cpu_gets_no_options():
    assert scaled.here is scaled.usual
    assert scaled(3, jnp.arange(4)) == 18
    assert scaled.trace(2, jnp.arange(4)).lower().compile()(jnp.arange(4)) == 12
    assert scaled.lower(2, jnp.arange(4)).compile()(jnp.arange(4)) == 12


@needs_libtpu
def test_a_tpu_gets_them(asked_anew: None, monkeypatch: pytest.MonkeyPatch):
    with jax.set_mesh(make_mesh(model=4, devices=tpus(parse_slice("v5e:2x2")))):
        assert scaled.here is scaled.on_tpu
        assert "tpu" in scaled.lower(2, jax.ShapeDtypeStruct((4,), jnp.int32)).compile().as_text()
        monkeypatch.setenv("JAXSPEC_TPU_OPTIONS", "0")
        assert scaled.here is scaled.usual, "the user turned them off"
    assert scaled.here is scaled.usual


@needs_libtpu
def test_a_compiler_that_lacks_one_gets_none(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tpu_options, "LOOP", {"xla_tpu_of_another_version": "true"})
    with jax.set_mesh(make_mesh(model=4, devices=tpus(parse_slice("v5e:2x2")))):
        assert scaled.here is scaled.usual
        assert scaled.here is scaled.usual
    assert capsys.readouterr().err.count("xla_tpu_of_another_version") == 1
