"""The mixture of experts against its definition, and both ways to compute it. (test_llama.py: transformers.)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint import memory, parameters
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.model import quantization
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import MixtureOfExperts, run_all, run_selected

CONFIG = LlamaConfig(
    vocab_size=8, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
    num_experts=5, experts_per_token=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def layer() -> MixtureOfExperts:
    return MixtureOfExperts(nnx.Rngs(0), CONFIG, jnp.dtype("float32"))


@pytest.fixture(scope="module")
def tokens() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (7, 16))


def by_hand(layer: MixtureOfExperts, token: np.ndarray) -> np.ndarray:
    """Mixtral's paper, §2.1, in float64: softmax over the logits of the top k, which is the renormalised one of all."""
    params = {name: np.asarray(value, np.float64) for name, value in module_to_dict(layer).items()}
    logits = token @ params["router.kernel"]
    best = np.argsort(-logits)[:2]
    share = np.exp(logits[best] - logits[best].max())
    total = np.zeros(16)
    for weight, e in zip(share / share.sum(), best, strict=True):
        gate, up, down = (params[f"experts.{name}.kernel"][e] for name in ("gate", "up", "down"))
        inner = token @ gate
        total += weight * ((inner / (1 + np.exp(-inner)) * (token @ up)) @ down)
    return total


def test_by_hand(layer: MixtureOfExperts, tokens: jax.Array):
    expected = np.stack([by_hand(layer, token) for token in np.asarray(tokens, np.float64)])
    np.testing.assert_allclose(layer(tokens[None])[0], expected, atol=1e-5)
    for at in range(0, 6, 2):  # few enough to ask each
        np.testing.assert_allclose(layer(tokens[None, at : at + 2])[0], expected[at : at + 2], atol=1e-5)


def test_few_tokens_read_few_experts(layer: MixtureOfExperts, tokens: jax.Array):
    share, chosen = layer.route(tokens)
    other = next(e for e in range(5) if e not in chosen[0])
    poisoned = jax.tree.map(lambda stack: stack.at[other].set(jnp.nan), layer.experts)
    assert np.isfinite(run_selected(poisoned, tokens[:1], share[:1], chosen[:1])).all()
    assert not np.isfinite(run_all(poisoned, tokens[:1], share[:1], chosen[:1])).all()


@pytest.mark.parametrize("how", quantization.KINDS)
def test_quantised_experts(layer: MixtureOfExperts, tokens: jax.Array, how: str):
    """Both ways take each expert's own scales; the router stays as it is."""
    integers = quantization.quantized(layer, how)
    names = module_to_dict(layer).keys()
    floats = parameters.dict_to_module(layer, quantization.dense(module_to_dict(integers), names))
    assert isinstance(integers.router.kernel, nnx.Param)
    for count in (1, 7):
        np.testing.assert_allclose(integers(tokens[None, :count]), floats(tokens[None, :count]), atol=1e-5)


def test_axes_and_bytes():
    kernel = parameters.abstract(CONFIG).layers[0].mlp.experts.down.kernel
    assert kernel.get_metadata()["axes"] == ("expert", "mlp", "embed")
    of_layer = 5 * 3 * 16 * 24 + 16 * 5
    without = memory.parameter_count(CONFIG.without_experts)
    assert memory.parameter_count(CONFIG) == without - 3 * 16 * 24 + of_layer
