"""Children under Gumbel coupling: their order, their confidences, and tokens that are no children."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decoding.drafter import Drafts
from jaxspec.decoding.rule import Draws, Proposal
from jaxspec.decoding.sampling import Sampling
from jaxspec.rules import GumbelCoupling

Q = np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32)
PROPOSE = jax.jit(GumbelCoupling().propose, static_argnums=(2, 3))
NOISE = np.array([0.1, 0.2, 3.0, -1.0, 2.9], np.float32)


def propose(drafts: Drafts, temperature: float = 1.0, top_p: float = 1.0, count: int = 3) -> Proposal:
    sampling = Sampling(temperature=jnp.array([temperature]), top_k=None, top_p=jnp.array([top_p]))
    keys = jax.random.split(jax.random.key(0), 1)
    draws = Draws(sampling=sampling, keys=keys, noise=jnp.asarray(NOISE)[None])
    return PROPOSE(draws, drafts, 2, count)


def whole(logits: np.ndarray) -> Drafts:
    return Drafts(logits=jnp.asarray(logits)[None, None])


def test_children_are_the_top_by_log_q_plus_noise():
    scores = np.log(Q) + NOISE
    found = propose(whole(np.log(Q)))
    assert found.token.tolist() == [[np.argsort(-scores)[:3].tolist()] * 2]  # the same under both nodes
    confidence = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(np.exp(found.log_prob[0, 1]), np.sort(confidence)[::-1][:3], rtol=1e-5)
    assert found.live.all()


def test_temperature_comes_before_the_noise():
    scores = np.log(Q) / 0.25 + NOISE
    assert propose(whole(np.log(Q)), temperature=0.25).token[0, 0].tolist() == np.argsort(-scores)[:3].tolist()


def test_a_greedy_row_ignores_the_noise():
    found = propose(whole(np.log(Q)), temperature=0.0)
    assert found.token[0, 0].tolist() == [0, 1, 2]
    np.testing.assert_allclose(np.exp(found.log_prob[0, 0]), Q[:3], rtol=1e-5)


def test_what_top_p_leaves_out_is_no_child():
    found = propose(whole(np.log(Q)), top_p=0.6)  # leaves 0 and 1
    assert found.live[0, 0].tolist() == [True, True, False]
    assert set(found.token[0, 0, :2].tolist()) == {0, 1}


def test_candidates_keep_their_share_and_look_at_the_noise_of_their_ids():
    """Tokens 4 and 2, which have half of all mass; a third of -inf fills up the row."""
    drafts = Drafts(logits=jnp.log(jnp.array([[[0.3, 0.2, 0.0]]])), token=jnp.array([[[4, 2, 0]]]))
    found = propose(drafts)
    weight = np.array([0.3 * np.exp(NOISE[4]), 0.2 * np.exp(NOISE[2])])
    assert found.token[0, 0, :2].tolist() == [4, 2] and found.live[0, 0].tolist() == [True, True, False]
    np.testing.assert_allclose(np.exp(found.log_prob[0, 0, :2]), 0.5 * weight / weight.sum(), rtol=1e-5)
