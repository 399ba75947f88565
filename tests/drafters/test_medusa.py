"""Medusa: the head of each level, and that drafts do not depend on the path above them."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.decoding.tree import Frontier
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from tests.lossless.harness import models

COUNT, VOCAB, WIDTH = 3, 50, 16


@pytest.fixture(scope="module")
def weights() -> Models:
    target = models(VOCAB).target
    found = MedusaHeads(WIDTH, VOCAB, rngs=nnx.Rngs(1), heads=COUNT)
    biased = {name: x + jnp.linspace(-1, 1, WIDTH) for name, x in module_to_dict(found).items() if "bias" in name}
    return Models(target=target, draft=dict_to_module(found, module_to_dict(found) | biased))


def oracle(weights: Models, k: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden state of head k, by NumPy in float64."""
    named = {name: np.asarray(value, np.float64) for name, value in module_to_dict(weights.draft).items()}
    wide = x.astype(np.float64) @ named[f"heads.{k}.residual.kernel"] + named[f"heads.{k}.residual.bias"]
    hidden = x + wide / (1 + np.exp(-wide))
    return hidden @ named[f"heads.{k}.head.kernel"], hidden


def committed(features: np.ndarray, count: list[int]) -> Committed:
    tokens = jnp.zeros(features.shape[:2], jnp.int32)
    return Committed(
        start=jnp.zeros(2, jnp.int32),
        count=jnp.asarray(count),
        token=tokens,
        next_token=tokens,
        hidden=jnp.asarray(features),
        taps=(),
    )


def test_a_level_is_its_heads_whatever_the_path(weights: Models):
    features = np.random.default_rng(0).standard_normal((2, 4, WIDTH)).astype(np.float32)
    drafter = Medusa()
    state = drafter.observe(weights, drafter.init(weights, 2, 8), committed(features, [4, 2]))
    state = drafter.observe(weights, state, committed(-features, [0, 3]))  # a row that is done learns nothing
    x = np.stack([features[0, 3], -features[1, 2]])
    prefix = Prefix(token=jnp.zeros((2, 8), jnp.int32), length=jnp.array([5, 4]), cache=())
    tree = trees.init_tree(jnp.zeros(2, jnp.int32), 5, None)
    drafts, state = drafter.root(weights, state, prefix, tree)
    found = [drafts]
    for level in range(1, 5):
        node = jnp.asarray([[1, 2], [3, 0]])
        frontier = Frontier(node=node, live=node > 0, level=jnp.asarray(level))
        drafts, state = drafter.expand(weights, state, prefix, tree, frontier)
        found.append(drafts)
    for level, drafts in enumerate(found):  # one distribution for all nodes of a level
        assert drafts.token is None and drafts.hidden is not None
        assert drafts.logits.shape == (2, 1, VOCAB) and drafts.hidden.shape == (2, 1, WIDTH)
        if level < COUNT:
            logits, hidden = oracle(weights, level, x)
            np.testing.assert_allclose(drafts.logits[:, 0], logits, atol=1e-4)
            np.testing.assert_allclose(drafts.hidden[:, 0], hidden, atol=1e-5)
        else:
            assert (np.asarray(drafts.logits) == -np.inf).all(), "no head drafts this deep"
