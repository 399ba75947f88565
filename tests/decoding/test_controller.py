"""The signals that controllers get of a drafted level, on a tree worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decoding import tree as trees
from jaxspec.decoding.controller import draft_signals
from jaxspec.decoding.drafter import Drafts
from jaxspec.decoding.tree import Frontier

ADD, SIGNALS = jax.jit(trees.add_nodes), jax.jit(draft_signals)
LEVEL_1, LEVEL_2 = [0.5, 0.4], [0.1, 0.2, 0.3]  # confidences of nodes 1 and 2, and of 3 (below 1), 4 and 5 (below 2)


def test_the_most_confident_path_is_shown():
    """In row 0 the level has all three nodes; in row 1 it was not drafted."""
    tree = trees.init_tree(jnp.array([7, 7]), 6, None)
    both, one = jnp.ones((2, 2), bool), jnp.array([[True] * 3, [False] * 3])
    confidence = lambda values: jnp.log(jnp.array([values, values]))
    tree = ADD(tree, jnp.arange(1, 3), jnp.ones((2, 2), int), jnp.zeros((2, 2), int), confidence(LEVEL_1), both)
    below = jnp.array([[1, 2, 2]] * 2)
    tree = ADD(tree, jnp.arange(3, 6), jnp.ones((2, 3), int), below, confidence(LEVEL_2), one)
    expanded = Frontier(node=jnp.array([[1, 2]] * 2), live=both, level=jnp.array(1))
    newest = Frontier(node=jnp.array([[5, 4]] * 2), live=one[:, :2], level=jnp.array(2))
    probs = np.array([[0.9, 0.05, 0.05], [0.3, 0.1, 0.6]], np.float32)  # after nodes 1 and 2
    hidden = jnp.arange(2.0)[None, :, None] * jnp.ones((2, 1, 4))
    feature = jnp.arange(8.0).reshape(2, 4)
    drafts = Drafts(logits=jnp.log(jnp.array([probs, probs])) + 3, hidden=hidden)
    seen = SIGNALS(tree, newest, expanded, drafts, feature)
    assert (seen.drafted.tolist(), seen.active.tolist(), int(seen.level)) == ([True, False], [True, False], 2)
    np.testing.assert_allclose(np.exp(seen.log_confidence[0]), 0.3, rtol=1e-5)
    np.testing.assert_allclose(seen.token_prob[0], 0.3 / 0.4, rtol=1e-5)
    np.testing.assert_allclose(seen.top_prob[0], 0.6, rtol=1e-5)  # of node 2's distribution, not of node 1's
    np.testing.assert_allclose(np.exp(seen.log_coverage[0]), 0.1 + 0.2 + 0.3, rtol=1e-5)
    assert seen.draft_hidden is not None and seen.draft_hidden[0].tolist() == [1.0] * 4
    np.testing.assert_array_equal(seen.target_hidden, feature)


def test_candidates_are_probabilities_already():
    """Their log-probabilities may sum to less than 1, and are not normalised."""
    tree = trees.init_tree(jnp.array([7]), 2, None)
    live, zero = jnp.ones((1, 1), bool), jnp.zeros((1, 1), int)
    tree = ADD(tree, jnp.array([1]), zero, zero, jnp.log(jnp.array([[0.25]])), live)
    newest = Frontier(node=zero + 1, live=live, level=jnp.array(1))
    drafts = Drafts(logits=jnp.log(jnp.array([[[0.125, 0.25]]])), token=jnp.array([[[4, 5]]]))
    seen = SIGNALS(tree, newest, trees.root_frontier(1), drafts, jnp.zeros((1, 4)))
    np.testing.assert_allclose(seen.top_prob, 0.25, rtol=1e-5)
    assert seen.draft_hidden is None
