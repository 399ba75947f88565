"""Options of the TPU compiler: off unless the user turns them on, and known to the compiler."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxspec.model import backend
from jaxspec.planning.chips import parse_slice
from jaxspec.planning.devices import tpus


@pytest.mark.parametrize(("value", "on"), [(None, False), ("0", False), ("1", True)])
def test_they_are_off_by_default(value: str | None, on: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAXSPEC_TPU_OPTIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("JAXSPEC_TPU_OPTIONS", value)
    assert backend.chosen_options({"an_option": "1"}) == ({"an_option": "1"} if on else None)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
@pytest.mark.parametrize("options", [backend.TPU_LOOP_OPTIONS, backend.TPU_PREFILL_OPTIONS])
def test_the_compiler_knows_them(options: dict[str, str]):
    x = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=SingleDeviceSharding(tpus(parse_slice("v5e:2x2"))[0]))
    assert jax.jit(jnp.sum, compiler_options=options).lower(x).compile() is not None
