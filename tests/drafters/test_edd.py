"""EDD: the hidden states that it reads, and that it drafts from the logits that training computes."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxspec.checkpoint import parameters
from jaxspec.convert.llama import convert
from jaxspec.decoding.drafter import Committed, Models, Prefix
from jaxspec.drafters.edd import Edd, EddHead, EddState, default_tap
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from jaxspec.train.methods import edd
from jaxspec.train.run.packed import read
from tests import hf_models
from tests.drafters.chain import chain
from tests.lossless.harness import models

LENGTH, ROWS = 17, 32
FORWARD = jax.jit(forward, static_argnames="taps")


@pytest.mark.parametrize(("num_layers", "tap"), [(1, 0), (3, 0), (4, 0), (5, 1), (32, 28), (40, 36)])
def test_default_tap(num_layers: int, tap: int):
    assert default_tap(num_layers) == tap


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Llama, np.ndarray, list[np.ndarray]]:
    """A target, tokens, and the hidden states that transformers computes for them."""
    folder: Path = tmp_path_factory.mktemp("oracle")
    theirs = hf_models.make("llama", folder / "theirs", num_hidden_layers=6)
    convert(folder / "theirs", folder / "ours")
    tokens = np.random.default_rng(0).integers(0, 96, (2, LENGTH))
    with torch.inference_mode():
        found = theirs(torch.from_numpy(tokens), output_hidden_states=True).hidden_states
    return parameters.restore(folder / "ours", jnp.float32), tokens, [each.numpy() for each in found]


@pytest.mark.parametrize(("tap", "theirs"), [(default_tap(6), -4), (0, 1), (4, 5), (5, -1)])
def test_the_tap_is_the_hidden_state_of_transformers(tap: int, theirs: int, oracle):
    """In decoding and in training; the last layer's comes after the final norm, as transformers' does."""
    target, tokens, hidden_states = oracle
    head = edd.initial(target, tap)
    weights = Models(target=target, draft=head)
    causal = causal_mask(2, LENGTH)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (2, LENGTH))
    cache = kv.allocate(target.config, 2, 1, jnp.dtype("float32"))
    taps = Edd().taps(weights)
    out = FORWARD(target, jnp.asarray(tokens), positions, causal, cache, jnp.zeros(2, jnp.int32), taps=taps)
    (tapped,) = out.taps or (out.hidden,)
    np.testing.assert_allclose(tapped, hidden_states[theirs], atol=1e-4)
    encoded = read(target, jnp.asarray(tokens), jnp.zeros((2, LENGTH), jnp.int32), taps)
    features, taps = encoded.hidden, encoded.taps
    (trained_on,) = taps or (features,)
    np.testing.assert_allclose(trained_on, hidden_states[theirs], atol=1e-4)
    np.testing.assert_allclose(features, hidden_states[-1], atol=1e-4)


OBSERVE = jax.jit(Edd().observe)
PREDICT = jax.jit(edd.predict)


def observe(weights: Models, state: EddState, tokens: jax.Array, hidden: jax.Array, start, count, width: int):
    """`count` tokens of each row from `start` on became certain; in the rest of the block stands something else."""
    at = np.minimum(start[:, None] + np.arange(width), LENGTH - 1)
    valid = np.arange(width) < count[:, None]
    block = lambda values: jnp.take_along_axis(values, at.reshape(at.shape + (1,) * (values.ndim - 2)), axis=1)
    found, other = jnp.where(valid[..., None], block(hidden), 7.0), jnp.full((*at.shape, hidden.shape[-1]), 5.0)
    tapped = bool(Edd().taps(weights))
    committed = Committed(
        start=jnp.asarray(np.where(count > 0, start, start + 1)),
        count=jnp.asarray(count),
        token=block(tokens),
        next_token=block(jnp.roll(tokens, -1, axis=1)),
        hidden=other if tapped else found,
        taps=(found,) if tapped else (),
    )
    return OBSERVE(weights, state, committed)


@pytest.mark.parametrize("tap", [0, 1])  # of two layers: the second one's hidden states are the features
def test_every_draft_step_is_what_training_computes(tap: int):
    """Round after round, in two rows that go on by different counts.

    With a root at r, a chain no longer than r is a block of the mask: that from r on of those of r tokens.
    """
    target = models(23).target
    head = EddHead(dataclasses.replace(target.config, num_layers=1), rngs=nnx.Rngs(5), tap=tap)
    weights = Models(target=target, draft=head)
    tokens = jax.random.randint(jax.random.key(3), (2, LENGTH), 0, 23)
    padded = jnp.pad(tokens, [(0, 0), (0, ROWS - LENGTH)])
    segment = jnp.zeros((2, LENGTH), jnp.int32)
    encoded = read(target, tokens, segment, Edd().taps(weights))
    features, taps = encoded.hidden, encoded.taps
    (hidden,) = taps or (features,)
    state, known = Edd().init(weights, 2, ROWS), np.zeros(2, int)
    for count in ([6, 4], [1, 3], [2, 0], [1, 6]):
        state = observe(weights, state, tokens, hidden, known, np.array(count), width=6)
        known = known + count
        prefix = Prefix(token=padded, length=jnp.asarray(known + 1), cache=())
        found = chain(Edd(), weights, state, prefix, steps=3)
        for row, root in enumerate(known):
            blocks = edd.rounds_of(segment, jnp.asarray(root), longest=LENGTH)
            trained = PREDICT(head, tokens, hidden, blocks)[row, root : root + 4]
            np.testing.assert_allclose(found[row], trained, atol=2e-5)
