"""A chain with given tokens, drafted from a root: the logits of each step."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Drafter, Models, Prefix
from jaxspec.decoding.tree import Frontier

ADD = jax.jit(trees.add_nodes)
ROOT = jax.jit(lambda drafter, *arguments: drafter.root(*arguments), static_argnums=0)
EXPAND = jax.jit(lambda drafter, *arguments: drafter.expand(*arguments), static_argnums=0)


def chain(drafter: Drafter, weights: Models, state: Any, prefix: Prefix, steps: int) -> jax.Array:
    """Logits [B, 1 + steps, V] after each row's root, and after each of the tokens of `prefix` that come after that."""
    batch = len(prefix.token)
    after = lambda step: jnp.take_along_axis(prefix.token, prefix.length[:, None] - 1 + step, axis=1)
    tree = trees.init_tree(after(0)[:, 0], steps + 1, None)
    drafts, state = ROOT(drafter, weights, state, prefix, tree)
    found, live = [drafts.logits[:, 0]], jnp.ones((batch, 1), bool)
    for node in range(1, steps + 1):
        parent = jnp.full((batch, 1), node - 1)
        tree = ADD(tree, jnp.array([node]), after(node), parent, jnp.zeros((batch, 1)), live)
        frontier = Frontier(node=parent + 1, live=live, level=jnp.array(node))
        drafts, state = EXPAND(drafter, weights, state, prefix, tree, frontier)
        found.append(drafts.logits[:, 0])
    return jnp.stack(found, axis=1)
