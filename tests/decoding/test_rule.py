"""The distribution of children that verification gets, and their confidences."""

import jax.numpy as jnp
import numpy as np

from jaxspec.decoding.drafter import Drafts
from jaxspec.decoding.rule import keep_probs
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.tree import init_tree, root_frontier
from jaxspec.rules.greedy import propose_top_k
from jaxspec.rules.rejection_sampling import RejectionSampling


def test_ids_that_fill_up_candidates_take_nothing_from_q():
    """Token 0 is a candidate, and fills up the row besides."""
    tree = init_tree(jnp.zeros(1, jnp.int32), 3, 6)
    kept = keep_probs(tree, root_frontier(1), jnp.array([[[0.75, 0.25, 0.0, 0.0]]]), jnp.array([[[5, 0, 0, 0]]]))
    assert kept.draft_probs is not None
    np.testing.assert_array_equal(kept.draft_probs[0, 0], [0.25, 0, 0, 0, 0, 0.75])
    np.testing.assert_array_equal(kept.draft_probs[0, 1:], np.zeros((2, 6)))


def test_a_candidate_that_is_no_token_is_never_drawn():
    sampling = Sampling(temperature=jnp.ones(1), top_k=None, top_p=None)
    drafts = Drafts(logits=jnp.log(jnp.array([[[0.3, 0.1, 0.6]]])), token=jnp.array([[[5, 0, -1]]]))
    np.testing.assert_allclose(RejectionSampling().draft_probs(sampling, drafts), [[[0.75, 0.25, 0]]], rtol=1e-6)


def test_the_heads_estimate_is_the_first_childs_confidence():
    """The others share what remains, in the proportions of their probabilities; padding stays -inf."""
    probs = jnp.array([[[0.5, 0.3, 0.2, 0.0]]])
    found = propose_top_k(Drafts(logits=jnp.log(probs), log_accept=jnp.log(jnp.array([[0.8]]))), 2, 4)
    assert found.estimated and found.log_prob.shape == (1, 2, 4)
    np.testing.assert_allclose(np.exp(found.log_prob[0, 1]), [0.8, 0.2 * 0.6, 0.2 * 0.4, 0], atol=1e-6)
    sure = propose_top_k(Drafts(logits=jnp.log(probs), log_accept=jnp.zeros((1, 1))), 1, 4)
    assert float(sure.log_prob[0, 0, 0]) == 0 and float(sure.log_prob[0, 0, 1]) < -10
