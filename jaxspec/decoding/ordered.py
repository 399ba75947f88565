"""Floats as integers in the same order, so that a TPU compares single numbers and a search can bisect their range."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LEAST = np.int32(np.iinfo(np.int32).min)


def ordered(values: Float[Array, "*B V"]) -> Int[Array, "*B V"]:
    """int32 values in the order of the float32 values, all above `LEAST`; 0 and -0 are equal."""
    return _turned(jax.lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32))


def values_of(integers: Int[Array, "*B V"]) -> Float[Array, "*B V"]:
    """Inverse of `ordered`; NaN for `LEAST`."""
    return jax.lax.bitcast_convert_type(_turned(integers), jnp.float32)


def _turned(bits: Int[Array, "*B V"]) -> Int[Array, "*B V"]:
    """Reverses the order of negative floats' bits. It is its own inverse."""
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
