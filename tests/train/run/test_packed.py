"""The forward of training gives the numbers of the forward of decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.model import kv_cache
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import product
from jaxspec.model.llama import Llama, forward
from jaxspec.train.run import packed

CONFIG = LlamaConfig(
    vocab_size=17, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4
)


def windows(lengths: list[int]) -> tuple[jax.Array, jax.Array]:
    """Tokens and segments of one window made of documents of these lengths."""
    segment = np.repeat(np.arange(len(lengths)), lengths)[None]
    return jax.random.randint(jax.random.key(0), segment.shape, 0, 17), jnp.asarray(segment)


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


def decoding(model: Llama, tokens: jax.Array) -> jax.Array:
    """Features of one document by the forward that decoding uses."""
    width = tokens.shape[1]
    causal = jnp.tril(jnp.ones((1, width, width), bool))
    empty, none = kv_cache.allocate(CONFIG, 1, 1, jnp.dtype("float32")), jnp.zeros(1, jnp.int32)
    return jax.jit(forward)(model, tokens, jnp.arange(width)[None], causal, empty, none).hidden


# 128 queries make a block: one, several and a part, and borders of documents inside and at the border of a block.
@pytest.mark.parametrize("lengths", [[128], [300], [100, 28, 1, 100]])
def test_equals_decoding_document_by_document(lengths, model):
    tokens, segment = windows(lengths)
    found = jax.jit(packed.hidden_states)(model, tokens, segment)
    ends = np.cumsum(lengths)
    alone = [decoding(model, tokens[:, end - n : end]) for n, end in zip(lengths, ends, strict=True)]
    np.testing.assert_allclose(found, jnp.concatenate(alone, axis=1), atol=2e-5)


def test_positions_begin_anew_in_every_document():
    _, segment = windows([3, 1, 4])
    assert packed.positions(segment).tolist() == [[0, 1, 2, 0, 0, 1, 2, 3]]


def test_a_layer_that_is_not_kept_changes_nothing(model):
    tokens, segment = windows([20])
    kept = jax.jit(packed.hidden_states)(model, tokens, segment, jnp.array([False, True]))
    short = Llama(CONFIG, rngs=nnx.Rngs(0))
    short.embedding, short.norm = model.embedding, model.norm
    short.layers = nnx.List([model.layers[1]])
    np.testing.assert_allclose(kept, packed.hidden_states(short, tokens, segment), atol=1e-5)


def test_the_gradient_of_a_product_is_the_usual_one():
    x, kernel = jax.random.normal(jax.random.key(0), (2, 5, 3)), jax.random.normal(jax.random.key(1), (3, 4))
    of = lambda multiply: jax.jit(jax.grad(lambda x, kernel: (multiply(x, kernel) ** 2).sum(), (0, 1)))(x, kernel)
    for ours, usual in zip(of(product), of(lambda x, kernel: x @ kernel), strict=True):
        np.testing.assert_allclose(ours, usual, rtol=1e-5)
