"""The tree mask: which nodes of the draft tree each node attends to."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxspec.decoding.tree import DraftTree, take


def tree_mask(tree: DraftTree, node: Int[Array, "B W"], *, root_is_cached: bool = False) -> Bool[Array, "B W N"]:
    """Each of W nodes sees itself and its ancestors.

    Args:
        root_is_cached: the root's keys and values are in the drafter's cache, so the root is not visible among the
            nodes.
    """
    seen = take(tree.ancestors, node)
    return seen & (jnp.arange(tree.token.shape[1]) > 0) if root_is_cached else seen
