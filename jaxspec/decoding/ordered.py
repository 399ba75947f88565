"""Floats as integers in the same order, so that a TPU compares single numbers and a search can bisect their range."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LEAST = np.int32(np.iinfo(np.int32).min)


def ordered(values: Float[Array, "*B V"]) -> Int[Array, "*B V"]:
    """int32 in the order of the float32 values, all of them above `LEAST`; either zero is the same."""
    return _turned(jax.lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32))


def values_of(integers: Int[Array, "*B V"]) -> Float[Array, "*B V"]:
    """The values that `ordered` made these of; NaN for `LEAST`."""
    return jax.lax.bitcast_convert_type(_turned(integers), jnp.float32)


def _turned(bits: Int[Array, "*B V"]) -> Int[Array, "*B V"]:
    """The bits of negative floats in falling order; its own inverse."""
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
