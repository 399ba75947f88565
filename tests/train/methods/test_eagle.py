"""EAGLE's training: its loss against a plain implementation, and its logits against those of decoding."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.decoding.tree import Frontier
from jaxspec.drafters.eagle import INPUTS, Eagle, EagleHead
from jaxspec.model.attention import over_documents
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import EagleObjective
from jaxspec.train.methods import eagle
from jaxspec.train.run.packed import hidden_states, positions
from tests.train.windows import shape, two_windows

CONFIG = shape(2)
LENGTH = 12


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def head() -> EagleHead:
    return EagleHead(CONFIG, rngs=nnx.Rngs(1), bias=True)


@pytest.fixture(scope="module")
def batch() -> Windows:
    return two_windows(7, 5, 13)


@jax.jit
def predict(head: EagleHead, target: Llama, tokens: jax.Array, features: jax.Array, segment: jax.Array) -> jax.Array:
    """The features that training predicts from pairs of a feature and a token, of which the head reads `tokens`."""
    return head(target, tokens, features, rotary(CONFIG, positions(segment)), over_documents(segment))[0]


def softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - logits.max())
    return weight / weight.sum()


def test_loss_is_the_papers(target, head, batch):
    """SmoothL1 + weight · cross-entropy, pair after pair, over drafts that count and stay in their document."""
    known, weight = hidden_states(target, batch.tokens, batch.segment), 0.3
    predicted = np.asarray(predict(head, target, batch.tokens[:, 1:-1], known[:, :-2], batch.segment[:, :-2]))
    features = np.asarray(known)
    total = count = 0.0
    for row, i in np.ndindex(2, LENGTH - 2):
        if not batch.counted[row, i + 2] or batch.segment[row, i] != batch.segment[row, i + 2]:
            continue
        error = np.abs(predicted[row, i] - features[row, i + 1])
        total += np.where(error < 1, error**2 / 2, error - 0.5).mean()
        says, drafts = (
            softmax(np.asarray(target.logits(jnp.asarray(f)))) for f in (features[row, i + 1], predicted[row, i])
        )
        total -= weight * (says * np.log(drafts)).sum()
        count += 1
    objective = EagleObjective(cross_entropy=weight)
    loss = jax.jit(partial(eagle.loss, objective=objective))
    for given in (batch, dataclasses.replace(batch, features=known)):  # with features from the disk too
        found, sums = loss(head, target, given, None)
        assert float(sums["count"]) == count
        assert float(found) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("inputs", INPUTS)
def test_a_head_reads_its_inputs_alone(inputs: str, target, batch):
    head = EagleHead(CONFIG, rngs=nnx.Rngs(1), bias=False, inputs=inputs)
    features, tokens = hidden_states(target, batch.tokens, batch.segment)[:, :-2], batch.tokens[:, 1:-1]
    given = lambda features, tokens: float(predict(head, target, tokens, features, batch.segment[:, :-2]).sum())
    assert (given(2 * features, tokens) != given(features, tokens)) == (inputs != "token")
    assert (given(features, (tokens + 1) % 13) != given(features, tokens)) == (inputs != "feature")


def test_noise_is_uniform_and_on_the_features_only(target, head, batch):
    scale = lambda noise, by: EagleObjective(noise=noise, noise_scale=by)
    loss = lambda objective, key: float(eagle.loss(head, target, batch, key, objective)[0])
    quiet = loss(scale(0.1, "constant"), None)
    assert loss(scale(0.0, "constant"), jax.random.key(0)) == quiet
    assert loss(scale(0.1, "constant"), jax.random.key(0)) != quiet
    # 512 / 12 times as much of it, when scaled as the published code does.
    assert loss(scale(0.1 * LENGTH / 512, "length"), jax.random.key(0)) == pytest.approx(
        loss(scale(0.1, "constant"), jax.random.key(0))
    )


@pytest.mark.parametrize("inputs", INPUTS)
def test_trains_what_decodes(inputs: str, target):
    """The first draft of a round is what training computed there; later ones go on from predicted features."""
    head = EagleHead(CONFIG, rngs=nnx.Rngs(1), bias=True, inputs=inputs)
    assert (head.fc is None) == (inputs in ("feature", "token"))
    tokens = jax.random.randint(jax.random.key(3), (1, LENGTH), 0, 13)
    segment = jnp.zeros((1, LENGTH), jnp.int32)
    features = hidden_states(target, tokens, segment)
    read = tokens[:, 1:] if head.shifted else tokens[:, :-1]
    predicted = predict(head, target, read, features[:, :-1], segment[:, :-1])

    models, drafter = Models(target=target, draft=head), Eagle()
    observe, expand = jax.jit(drafter.observe), jax.jit(drafter.expand)
    state = drafter.init(models, 1, 32)
    for start, count in ((0, 5), (5, 2), (7, 4)):  # a prompt and two rounds; 11 pairs make 12 tokens
        block = slice(start, start + 6)  # blocks are longer than what counts of them
        pad = lambda values: jnp.pad(values, [(0, 0), (0, 16 - values.shape[1])] + [(0, 0)] * (values.ndim - 2))
        committed = Committed(
            start=jnp.array([start]),
            count=jnp.array([count]),
            token=pad(tokens)[:, block],
            next_token=pad(tokens[:, 1:])[:, block],
            hidden=pad(features)[:, block],
            taps=(),
        )
        state = observe(models, state, committed)
        np.testing.assert_allclose(state.hidden, predicted[:, start + count - 1], atol=1e-5)
        np.testing.assert_allclose(state.logits, target.logits(predicted[:, start + count - 1]), atol=1e-4)

    # A chain of two: its pairs, appended to the text's, by training's forward.
    prefix = Prefix(token=jnp.pad(tokens, [(0, 0), (0, 20)]), length=jnp.array([LENGTH]), cache=())
    tree = trees.init_tree(tokens[:, -1], 3, None)
    _, state = drafter.root(models, state, prefix, tree)
    known, text = jnp.concatenate([features[:, :-1], predicted[:, -1:]], axis=1), tokens
    for node, token in ((1, 4), (2, 9)):
        live, one = jnp.ones((1, 1), bool), lambda value: jnp.full((1, 1), value)
        tree = trees.add_nodes(tree, jnp.array([node]), one(token), one(node - 1), jnp.zeros((1, 1)), live)
        frontier = Frontier(node=one(node), live=live, level=jnp.array(node))
        drafts, state = expand(models, state, prefix, tree, frontier)
        text = jnp.concatenate([text, one(token)], axis=1)
        pairs = text[:, 1:] if head.shifted else text[:, :-1]
        expected = predict(head, target, pairs, known, jnp.zeros(pairs.shape, jnp.int32))[:, -1:]
        assert drafts.hidden is not None
        np.testing.assert_allclose(drafts.hidden, expected, atol=1e-5)
        np.testing.assert_allclose(drafts.logits, target.logits(expected), atol=1e-4)
        known = jnp.concatenate([known, expected], axis=1)
