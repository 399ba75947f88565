"""Attention under the dual-block mask against its definition, token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model.attention import over_rounds
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Layer
from jaxspec.model.rope import rotary
from jaxspec.train.methods.edd import rounds_of
from jaxspec.train.run.packed import positions

CONFIG = LlamaConfig(
    vocab_size=5, hidden_size=12, intermediate_size=16, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=4
)


def definition(documents: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """[T, T] of a window of documents of these lengths: which hidden states and which tokens each token sees."""
    size = sum(documents)
    hidden, tokens = np.zeros((size, size), bool), np.zeros((size, size), bool)
    first = 0  # of a document
    for count in documents:
        for i in range(count):
            block = i // length
            for k in range(count):
                hidden[first + i, first + k] = k // length < block
                tokens[first + i, first + k] = k // length == block and k <= i
        first += count
    return hidden, tokens


def segments(*rows: list[int]) -> jax.Array:
    return jnp.asarray([np.repeat(np.arange(len(row)), row) for row in rows])


@jax.jit
def ours(layer: Layer, x: jax.Array, hidden: jax.Array, segment: jax.Array, length: jax.Array) -> jax.Array:
    angles = rotary(CONFIG, positions(segment))
    attend = over_rounds(rounds_of(segment, length, longest=20), layer.keys_and_values(hidden, angles))
    return layer.attention(layer.attention_input(x), angles, attend)[0]


@jax.jit
def naive(layer: Layer, x: jax.Array, hidden: jax.Array, segment: jax.Array, seen: jax.Array) -> jax.Array:
    """The layer's attention over one window, by a softmax over 2 T keys for each query, of which it sees some."""
    at = rotary(CONFIG, positions(segment))
    query, key, value = layer.attention.project(layer.attention_input(x), at)
    _, soft_key, soft_value = layer.attention.project(layer.attention_input(hidden), at)
    keys, values = (jnp.concatenate(pair, axis=2) for pair in ((soft_key, key), (soft_value, value)))
    scores = jnp.where(seen, jnp.einsum("bkgwh,bksh->bkgws", query, keys) * CONFIG.head_dim**-0.5, -jnp.inf)
    mixed = jnp.einsum("bkgws,bksh->bkgwh", jax.nn.softmax(scores), values)
    return layer.attention.o(mixed.transpose(0, 3, 1, 2, 4).reshape(x.shape[0], x.shape[1], -1))


# 128 queries make a block of computation; rounds and documents end inside, at and across its border.
@pytest.mark.parametrize(
    ("documents", "length"),
    [*(([4, 1, 6, 2], length) for length in (1, 2, 3, 5, 13, 20)), ([128, 130], 10), ([100, 27, 3, 128], 5)],
)
def test_attention_is_the_naive_one(documents: list[int], length: int):
    layer = Layer(nnx.Rngs(0), CONFIG, jnp.dtype("float32"))
    sample = lambda seed: jax.random.normal(jax.random.key(seed), (1, sum(documents), CONFIG.hidden_size))
    x, hidden, segment = sample(1), sample(2), segments(documents)
    seen = np.concatenate(definition(documents, length), axis=1)
    found, expected = ours(layer, x, hidden, segment, jnp.asarray(length)), naive(layer, x, hidden, segment, seen)
    np.testing.assert_allclose(found, expected, atol=1e-5)
