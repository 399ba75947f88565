"""RMSNorm, the only kind of norm in these models (arXiv:1910.07467)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*B D"]:
    """RMSNorm in float32, returned in the dtype of x."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (scale.astype(x.dtype) * wide.astype(x.dtype)).astype(x.dtype)
