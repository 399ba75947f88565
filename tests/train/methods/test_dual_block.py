"""The dual-block mask against its definition, token by token, and the attention under it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model.attention import project
from jaxspec.model.config import LlamaConfig
from jaxspec.model.linear import linear
from jaxspec.model.llama import Layer, attention_input, keys_and_values
from jaxspec.model.rope import rotary
from jaxspec.train.methods import dual_block
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


ROWS = [13], [4, 1, 6, 2]
ROOTS, MASK = jax.jit(dual_block.roots), jax.jit(dual_block.mask, static_argnums=(2, 3, 4))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 13, 20])
def test_every_position_of_every_block_sees_what_it_should(length: int):
    segment = segments(*ROWS)
    found = MASK(segment, ROOTS(segment, jnp.asarray(length)), 0, 13, 0)
    for row, documents in enumerate(ROWS):
        hidden, tokens = definition(documents, length)
        np.testing.assert_array_equal(found[row, :, :13], hidden)
        np.testing.assert_array_equal(found[row, :, 13:], tokens)
        # Each token at or before its own is seen once, as a hidden state or as itself.
        causal = np.tril(np.ones((13, 13), int)) * (np.asarray(segment)[row, :, None] == np.asarray(segment)[row])
        np.testing.assert_array_equal(hidden.astype(int) + tokens, causal)


def test_a_part_of_the_mask_is_that_of_the_whole():
    segment = segments([7, 13])
    root = ROOTS(segment, jnp.asarray(3))
    whole = MASK(segment, root, 0, 20, 0)[0]
    part = MASK(segment, root, 8, 14, 6)[0]
    np.testing.assert_array_equal(part[:, :14], whole[8:14, :14])
    np.testing.assert_array_equal(part[:, 14:], whole[8:14, 20 + 6 : 20 + 14])


def naive(layer: Layer, x: jax.Array, hidden: jax.Array, documents: list[int], length: int) -> jax.Array:
    """The layer's attention over one window, by a softmax over 2 T keys for each query."""
    at = rotary(CONFIG, positions(segments(documents)))
    query, key, value = project(layer.attention, CONFIG, attention_input(layer, CONFIG, x), *at)
    _, soft_key, soft_value = project(layer.attention, CONFIG, attention_input(layer, CONFIG, hidden), *at)
    keys, values = (jnp.concatenate(pair, axis=2) for pair in ((soft_key, key), (soft_value, value)))
    seen = jnp.asarray(np.concatenate(definition(documents, length), axis=1))
    scores = jnp.where(seen, jnp.einsum("bkgwh,bksh->bkgws", query, keys) * CONFIG.head_dim**-0.5, -jnp.inf)
    mixed = jnp.einsum("bkgws,bksh->bkgwh", jax.nn.softmax(scores), values)
    return linear(mixed.transpose(0, 3, 1, 2, 4).reshape(x.shape[0], x.shape[1], -1), layer.attention.o)


# 128 queries make a block of computation; blocks of the mask and documents end inside, at and across its border.
@pytest.mark.parametrize(("documents", "length"), [([9], 4), ([128, 130], 10), ([100, 27, 3, 128], 5)])
def test_attention_is_the_naive_one(documents: list[int], length: int):
    layer = Layer(nnx.Rngs(0), CONFIG, jnp.dtype("float32"))
    sample = lambda seed: jax.random.normal(jax.random.key(seed), (1, sum(documents), CONFIG.hidden_size))
    x, hidden, segment = sample(1), sample(2), segments(documents)
    soft = keys_and_values(layer, CONFIG, hidden, positions(segment))
    blocks = dual_block.Blocks(segment, jnp.asarray(length), longest=10)
    found = jax.jit(dual_block.attention_block, static_argnums=1)(layer, CONFIG, x, soft, blocks)
    np.testing.assert_allclose(found - x, naive(layer, x, hidden, documents, length), atol=1e-5)
