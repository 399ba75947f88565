"""Rotary position embedding (RoFormer, arXiv:2104.09864), and the scalings for longer contexts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxspec.model.config import LlamaConfig, Rope


def rope_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """[H/2] float32, radians per position, with the scaling of `rope` (`dynamic`: none, see `Rope`)."""
    frequency = 1.0 / np.float32(rope.theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope.scaling == "linear":
        return frequency / np.float32(rope.factor)
    if rope.scaling == "llama3":
        wavelength = 2 * np.pi / frequency
        low, high = rope.low_freq_factor, rope.high_freq_factor
        blend = (rope.original_length / wavelength - low) / (high - low)
        blend = np.clip(blend, 0.0, 1.0).astype(np.float32)
        return ((1 - blend) / rope.factor + blend).astype(np.float32) * frequency
    return frequency


def rotary(config: LlamaConfig, positions: Int[Array, "B W"]) -> tuple[Float[Array, "B W h"], Float[Array, "B W h"]]:
    """Cosines and sines of the positions' angles, float32, for `rotate`; h = H / 2."""
    angle = positions[..., None].astype(jnp.float32) * rope_frequencies(config.rope, config.head_dim)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: Float[Array, "B W K G H"], cos: Float[Array, "B W h"], sin: Float[Array, "B W h"]
) -> Float[Array, "B W K G H"]:
    """Rotates each head, whose halves hold the pairs' components (Hugging Face's layout); computed in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, None], sin[:, :, None, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
