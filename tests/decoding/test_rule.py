"""The distribution of children that verification gets."""

import jax.numpy as jnp
import numpy as np

from jaxspec.decoding.rule import keep_probs
from jaxspec.decoding.tree import init_tree, root_frontier


def test_ids_that_fill_up_candidates_take_nothing_from_q():
    """Token 0 is a candidate, and fills up the row besides."""
    tree = init_tree(jnp.zeros(1, jnp.int32), 3, 6)
    kept = keep_probs(tree, root_frontier(1), jnp.array([[[0.75, 0.25, 0.0, 0.0]]]), jnp.array([[[5, 0, 0, 0]]]))
    assert kept.draft_probs is not None
    np.testing.assert_array_equal(kept.draft_probs[0, 0], [0.25, 0, 0, 0, 0, 0.75])
    np.testing.assert_array_equal(kept.draft_probs[0, 1:], np.zeros((2, 6)))
