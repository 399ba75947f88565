"""Rejection sampling by hand: drafts that are certainly accepted, and weights whose sum vanishes by rounding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decoding.rule import Draws
from jaxspec.decoding.sampling import Sampling
from jaxspec.decoding.tree import add_nodes, init_tree
from jaxspec.rules.rejection_sampling import RejectionSampling, residual, without

SURE = jnp.log(jnp.eye(5)[jnp.array([3, 1, 4, 2])])[None]  # logits after each of four nodes: the next token, surely


def test_a_path_that_the_target_surely_takes_is_accepted_to_its_end():
    tree = init_tree(jnp.zeros(1, jnp.int32), 4, 5)
    for slot, token in ((1, 3), (2, 1), (3, 4)):
        one = jnp.full((1, 1), slot - 1)
        tree = jax.jit(add_nodes)(
            tree, jnp.array([slot]), jnp.array([[token]]), one, jnp.zeros((1, 1)), jnp.ones((1, 1), bool)
        )
    tree = dataclasses.replace(tree, draft_probs=jax.nn.softmax(SURE))
    warm = Sampling(temperature=jnp.ones(1), top_k=None, top_p=None)
    draws = Draws(sampling=warm, keys=jax.random.split(jax.random.key(0), 1), noise=jnp.zeros((1, 4, 5)))
    verdict = jax.jit(RejectionSampling().verify, static_argnums=3)(draws, tree, SURE, 3)
    assert verdict.accepted.tolist() == [3] and verdict.path.tolist() == [[0, 1, 2, 3]]
    assert verdict.next_token.tolist() == [2]


def test_what_rounding_leaves_empty_stays_as_it_was():
    """p - q, and q without its only token, have no positive weight: there is nothing to normalise."""
    p = jnp.array([[0.25, 0.75], [0.0, 1.0]])
    np.testing.assert_array_equal(residual(p, p), p)
    np.testing.assert_array_equal(without(p, jnp.array([[1], [1]])), [[1, 0], [0, 1]])
