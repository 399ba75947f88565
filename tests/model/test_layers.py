"""Products of activations and a kernel: their gradient, and how those of few rows are computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model import backend, layers
from jaxspec.model.layers import Linear


def test_its_gradient_is_the_products():
    wide = Linear(nnx.Rngs(0), (128, 160), ("embed", "mlp"), bias=True, dtype=jnp.dtype("float32"))
    x = jax.random.normal(jax.random.key(1), (2, 128))
    ours = jax.grad(lambda x: (wide(x) ** 2).sum())(x)
    theirs = jax.grad(lambda x: ((x @ wide.kernel[...]) ** 2).sum())(x)  # its bias is zero
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("eigen", [False, True])
@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 8), (7, 8), (8, 8), (9, 9)])
def test_a_table_is_multiplied_by_few_rows_as_by_eight(
    eigen: bool, count: int, expected: int, monkeypatch: pytest.MonkeyPatch
):
    """Where XLA does not use Eigen for fewer."""
    monkeypatch.setattr(backend, "_has_avx2_only", lambda: eigen)
    x, table, rows = jnp.ones((1, count, 16)), jnp.ones((24, 16)), []

    def multiply(x: jax.Array) -> jax.Array:
        rows.append(len(x.reshape(-1, 16)))
        return x @ table.T

    fewest = backend.fewest_rows_of_a_table(x.dtype)
    np.testing.assert_array_equal(layers.multiply_padded(x, multiply, fewest), x @ table.T)
    assert rows == [expected if eigen else count]


def test_only_loops_in_float32_have_the_option_for_eigen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "_has_avx2_only", lambda: True)
    seen = []

    def jit(function: Any, compiler_options: Any = None) -> Any:
        return lambda x: seen.append(compiler_options)

    monkeypatch.setattr(jax, "jit", jit)
    jitted = backend.Jitted(lambda x: x, lambda x: x.dtype, {})
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        jitted(jnp.zeros(1, dtype))
    with backend.no_device():
        jitted(jnp.zeros(1))
    assert [bool(options) for options in seen] == [True, False, False, False]
