"""Packed windows and the shape of a target for tests of losses."""

import jax.numpy as jnp
import numpy as np

from jaxspec.model.config import LlamaConfig
from jaxspec.train.data.text import Windows


def shape(num_layers: int) -> LlamaConfig:
    """A small target with a vocabulary of 13."""
    return LlamaConfig(
        vocab_size=13, hidden_size=8, intermediate_size=16, num_layers=num_layers, num_heads=2, num_kv_heads=1,
        head_dim=4,
    )  # fmt: skip


def two_windows(first: int, second: int, vocab_size: int, share: float = 0.7) -> Windows:
    """Two windows of random tokens, of which a share counts: one of two documents of these lengths, one of one."""
    rng, length = np.random.default_rng(0), first + second
    segment = np.array([[0] * first + [1] * second, [2] * length])
    counted = jnp.asarray(rng.random((2, length)) < share)
    tokens = jnp.asarray(rng.integers(0, vocab_size, (2, length)))
    return Windows(tokens=tokens, segment=jnp.asarray(segment), counted=counted)
