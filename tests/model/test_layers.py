"""The product of activations and a kernel, and its explicit gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model.layers import Linear


def layer(width: int, out: int) -> Linear:
    return Linear(nnx.Rngs(0), (width, out), ("embed", "mlp"), bias=True, dtype=jnp.dtype("float32"))


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 3), (2, 2), (1, 5)])
def test_as_in_double_precision(shape: tuple[int, ...]):
    wide = layer(128, 160)
    x = jax.random.normal(jax.random.key(1), (*shape, 128))
    assert wide.bias is not None
    weights, bias = np.asarray(wide.kernel[...], np.float64), np.asarray(wide.bias[...])
    np.testing.assert_allclose(wide(x), np.asarray(x, np.float64) @ weights + bias, rtol=1e-4, atol=1e-4)


def test_its_gradient_is_the_products():
    wide, x = layer(128, 160), jax.random.normal(jax.random.key(1), (2, 128))
    ours = jax.grad(lambda x: (wide(x) ** 2).sum())(x)
    theirs = jax.grad(lambda x: ((x @ wide.kernel[...]) ** 2).sum())(x)  # its bias is zero
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
