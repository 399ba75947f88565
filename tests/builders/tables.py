"""Trees over a drafter that is a table: the probabilities after a token depend on that token alone."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxspec.decoding import tree as trees
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.drafter import Drafts
from jaxspec.decoding.tree import DraftTree
from jaxspec.rules.greedy import propose_top_k

Paths = dict[tuple[int, ...], float]  # tokens from below the root -> confidence


@st.composite
def tables(draw, vocab_size: int = 6) -> np.ndarray:
    """Random probabilities [V V]: peaked ones, flat ones, and some between."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    return rng.dirichlet(np.full(vocab_size, draw(st.sampled_from([0.1, 0.5, 2.0]))), size=vocab_size)


@partial(jax.jit, static_argnames=("builder", "propose"))
def level(builder: TreeBuilder, propose: Any, tree: DraftTree, frontier: Any, logits: Any, active: Any) -> Any:
    """Another level of a tree; compiled once for a builder. `logits` are of each node of the frontier."""
    return builder.grow(partial(propose, Drafts(logits=logits), frontier.node.shape[1]), tree, frontier, active)


@partial(jax.jit, static_argnames="builder")
def prune(builder: TreeBuilder, tree: DraftTree) -> DraftTree:
    """The tree after the builder's pruning."""
    selection = builder.prune(tree)
    assert selection is not None
    return trees.subtree(tree, selection)


def grown(
    builder: TreeBuilder,
    table: Any,
    roots: tuple[int, ...] = (0,),
    propose: Any = propose_top_k,
    finished: tuple[int, ...] = (),
) -> DraftTree:
    """A tree a root, grown until no row has anything to expand, as the loop does.

    Args:
        propose: as a rule's, without keys and sampling: (drafts, width, count) -> children.
        finished: rows that draft nothing.
    """
    log_probs = jnp.log(jnp.asarray(table, jnp.float32))
    keeps = None if propose is propose_top_k else log_probs.shape[1]
    tree, frontier = trees.init_tree(jnp.array(roots), builder.size, keeps), trees.root_frontier(len(roots))
    active = jnp.ones(len(roots), bool).at[jnp.array(finished, int)].set(False)
    for _ in range(builder.depth):
        logits = log_probs[trees.take(tree.token, frontier.node)]
        tree, frontier = level(builder, propose, tree, frontier, logits, active)
        active &= frontier.live.any(axis=1)
        if not active.any():
            break
    return tree


def paths_of(tree: DraftTree, row: int = 0) -> Paths:
    """What is live of a row; that its parents, depths and ancestors agree is asserted on the way."""
    parents, tokens = tree.parent[row].tolist(), tree.token[row].tolist()
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in np.flatnonzero(tree.live[row])[1:].tolist():
        found[node] = (*found[parents[node]], tokens[node])  # a parent that is not there is a KeyError
        assert int(tree.depth[row, node]) == len(found[node])
        above = {other for other in found if found[node][: len(found[other])] == found[other]}
        assert set(np.flatnonzero(tree.ancestors[row, node]).tolist()) == above
    assert len(set(found.values())) == len(found)
    confidence = np.exp(np.asarray(tree.log_confidence[row], np.float64))
    return {path: float(confidence[node]) for node, path in found.items() if path}


def confidence(table: np.ndarray, path: tuple[int, ...], root: int = 0) -> float:
    """The product of the probabilities along a path."""
    return float(np.prod([table[before, token] for before, token in zip((root, *path), path, strict=False)]))


def children(table: np.ndarray, path: tuple[int, ...], count: int, root: int = 0) -> list[tuple[int, ...]]:
    """The `count` most probable continuations of a path by one token."""
    return [(*path, int(token)) for token in np.argsort(-table[(root, *path)[-1]], kind="stable")[:count]]
