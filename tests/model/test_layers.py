"""The explicit gradient of the product of activations and a kernel."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec.model.layers import Linear


def test_its_gradient_is_the_products():
    wide = Linear(nnx.Rngs(0), (128, 160), ("embed", "mlp"), bias=True, dtype=jnp.dtype("float32"))
    x = jax.random.normal(jax.random.key(1), (2, 128))
    ours = jax.grad(lambda x: (wide(x) ** 2).sum())(x)
    theirs = jax.grad(lambda x: ((x @ wide.kernel[...]) ** 2).sum())(x)  # its bias is zero
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
