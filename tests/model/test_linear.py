"""A few rows through a kernel, one by one or together: the same numbers, and the way that is faster on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model.linear import FEW, WORTH_IT, Linear, linear


def layer(width: int, out: int) -> Linear:
    return Linear(nnx.Rngs(0), (width, out), ("embed", "mlp"), bias=True, dtype=jnp.dtype("float32"))


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 3), (2, 2), (1, 5)])
def test_rows_one_by_one_are_rows_together(shape: tuple[int, ...]):
    wide = layer(128, 160)
    least, most = WORTH_IT
    assert least <= 128 * 160 * 4 <= most
    x = jax.random.normal(jax.random.key(1), (*shape, 128))
    assert wide.bias is not None
    weights, bias = np.asarray(wide.kernel[...], np.float64), np.asarray(wide.bias[...])
    np.testing.assert_allclose(linear(x, wide), np.asarray(x, np.float64) @ weights + bias, rtol=1e-4, atol=1e-4)
    alone = [linear(row[None], wide)[0] for row in x.reshape(-1, 128)]
    if len(alone) <= FEW:  # what decides it is then the very arithmetic of plain decoding
        assert np.array_equal(linear(x, wide).reshape(-1, 160), np.stack(alone))


@pytest.mark.parametrize(
    ("rows", "width", "out", "one_by_one"),
    [
        (1, 128, 160, False),
        (2, 128, 160, True),
        (FEW, 128, 160, True),
        (FEW + 1, 128, 160, False),
        (2, 16, 16, False),
        (2, 1024, 1024, False),  # beyond the cache
        (3, 1024, 1024, False),
    ],
)
def test_which_rows_go_one_by_one(rows: int, width: int, out: int, one_by_one: bool):
    x, wide = jnp.ones((rows, width)), layer(width, out)
    assert ("scan" in str(jax.make_jaxpr(lambda x: linear(x, wide))(x))) == one_by_one
    # Half precision is widened first, and a mesh may cut the kernel: both stay whole.
    assert "scan" not in str(jax.make_jaxpr(lambda x: linear(x, wide))(x.astype(jnp.bfloat16)))
    with jax.set_mesh(jax.make_mesh((1,), ("model",))):
        assert "scan" not in str(jax.make_jaxpr(lambda x: linear(x, wide))(x))


def test_its_gradient_is_the_products():
    wide, x = layer(128, 160), jax.random.normal(jax.random.key(1), (2, 128))
    ours = jax.grad(lambda x: (linear(x, wide) ** 2).sum())(x)
    theirs = jax.grad(lambda x: ((x @ wide.kernel[...]) ** 2).sum())(x)  # its bias is zero
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
