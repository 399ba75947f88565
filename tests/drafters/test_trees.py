"""A node of a tree gets the logits that it gets in a chain of its path: no drafter mixes branches."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.decoding import tree as trees
from jaxspec.decoding.drafter import Drafter, Models, Prefix
from jaxspec.decoding.tree import Frontier
from jaxspec.methods.method import parse_method
from tests.drafters.chain import ADD, EXPAND, ROOT, chain
from tests.lossless import combinations
from tests.lossless.harness import begun, models, requests, speculation, weights, with_kept_blocks

PARENTS = (-1, 0, 0, 1, 1, 2)  # of each node
LEVELS = ((0,), (1, 2), (3, 5, 4))  # the nodes that are expanded at once
VOCABULARY = 23


@pytest.fixture(scope="module")
def every() -> Models:
    return models(VOCABULARY)


def path(node: int) -> list[int]:
    """The nodes from below the root down to this one."""
    return [] if node == 0 else [*path(PARENTS[node]), node]


def in_a_tree(drafter: Drafter, chosen: Models, state: object, prefix: Prefix, token: np.ndarray) -> np.ndarray:
    """Logits [B, nodes, V] after each node, whose tokens are given [B, nodes]."""
    batch, count = token.shape
    tree = trees.init_tree(jnp.asarray(token[:, 0]), count, None)
    found = np.zeros((batch, count, VOCABULARY), np.float32)
    for level, nodes in enumerate(LEVELS):
        new = [node for node, parent in enumerate(PARENTS) if parent in nodes]
        frontier = Frontier(
            node=jnp.tile(jnp.array(nodes), (batch, 1)),
            live=jnp.ones((batch, len(nodes)), bool),
            level=jnp.array(level),
        )
        given = (state, prefix, tree) if level == 0 else (state, prefix, tree, frontier)
        drafts, state = (EXPAND if level else ROOT)(drafter, chosen, *given)
        logits = np.broadcast_to(drafts.logits, (batch, len(nodes), drafts.logits.shape[-1]))
        for place, node in enumerate(nodes):
            ids = np.arange(VOCABULARY) if drafts.token is None else np.asarray(drafts.token)[0, 0]
            found[:, node, ids] = logits[:, place]
        if new:
            parent = jnp.tile(jnp.array([PARENTS[node] for node in new]), (batch, 1))
            live = jnp.ones(parent.shape, bool)
            tree = ADD(tree, jnp.array(new), jnp.asarray(token[:, new]), parent, jnp.zeros(parent.shape), live)
    return found


@pytest.mark.parametrize(
    "name",
    [*(name for name in combinations.DRAFTERS if name not in ("ngram", "dflash", "medusa")), "layer-skip trained"],
)
def test_a_node_says_what_it_says_in_a_chain(name: str, every: Models):
    known = with_kept_blocks(every) if name.endswith("trained") else every
    spec = speculation(parse_method(f"{name.split()[0]}+chain"), greedy=True)
    chosen = weights(spec, known)
    state = begun(spec, chosen, requests([[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7]], 20), (), 32)
    prefix, length = state.prefix, np.asarray(state.length)
    token = np.random.default_rng(0).integers(0, VOCABULARY, (2, len(PARENTS)))
    token[:, 0] = [prefix.token[row, length[row] - 1] for row in range(2)]
    tree = in_a_tree(spec.drafter, chosen, state.drafter, prefix, token)
    for leaf in LEVELS[-1]:
        text = np.array(prefix.token)
        for row in range(2):
            text[row, length[row] : length[row] + len(path(leaf))] = token[row, path(leaf)]
        along = dataclasses.replace(prefix, token=jnp.asarray(text))
        alone = chain(spec.drafter, chosen, state.drafter, along, steps=len(path(leaf)))
        within = tree[:, [0, *path(leaf)]]
        if alone.shape[-1] < VOCABULARY:  # over a draft vocabulary
            within = within[..., [token for token in range(VOCABULARY) if token != 1]]
        np.testing.assert_allclose(within, alone, atol=2e-5)
