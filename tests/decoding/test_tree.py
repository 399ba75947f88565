"""Trees: invariants of adding, selecting and following, on random trees against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.decoding import tree as trees
from jaxspec.decoding.tree import NO_PARENT, DraftTree, Selection
from jaxspec.methods.method import parse_method
from jaxspec.rules.greedy import follow

SIZE = 7


@st.composite
def forests(draw):
    """Two rows of parents and tokens: node i > 0 hangs under an earlier live node, or is dead."""
    rows = []
    for _ in range(2):
        live = [0]
        parents = [NO_PARENT]
        for i in range(1, SIZE):
            parent = draw(st.sampled_from([NO_PARENT, *live]))
            parents.append(parent)
            if parent >= 0:
                live.append(i)
        rows.append((parents, draw(st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE))))
    return rows


def grow(rows):
    """The tree of `forests`, built node by node."""
    return grown(*(jnp.array(x) for x in zip(*rows, strict=True)))


@jax.jit
def grown(parents, tokens):
    tree = trees.init_tree(tokens[:, 0], SIZE, None)
    for i in range(1, SIZE):
        live = parents[:, i : i + 1] >= 0
        confidence = jnp.where(live, -float(i), -jnp.inf)
        slot, parent = jnp.array([i]), jnp.maximum(parents[:, i : i + 1], 0)
        tree = trees.add_nodes(tree, slot, tokens[:, i : i + 1], parent, confidence, live)
    return tree


def path(parents, node):
    """Ids from the root down to `node`."""
    return [] if node == NO_PARENT else [*path(parents, parents[node]), node]


@given(forests())
def test_growing_keeps_parents_depths_and_ancestors(rows):
    tree = grow(rows)
    for row, (parents, tokens) in enumerate(rows):
        for node in range(SIZE):
            alive = node == 0 or parents[node] >= 0
            assert bool(tree.live[row, node]) == alive
            expected = path(parents, node) if alive else [node]
            assert np.flatnonzero(tree.ancestors[row, node]).tolist() == expected
            if alive:
                assert int(tree.token[row, node]) == tokens[node]
                assert int(tree.depth[row, node]) == len(expected) - 1
    assert trees.levels(tree).tolist() == [max(len(path(p, n)) - 1 for n in range(SIZE)) for p, _ in rows]


@jax.jit
def compact(tree: DraftTree) -> DraftTree:
    return trees.subtree(tree, trees.compaction(tree))


@given(forests())
def test_compacting_keeps_every_path(rows):
    tree = compact(grow(rows))
    for row, (parents, tokens) in enumerate(rows):
        alive = [n for n in range(SIZE) if n == 0 or parents[n] >= 0]
        assert tree.live[row].tolist() == [True] * len(alive) + [False] * (SIZE - len(alive))
        for new, old in enumerate(alive):
            found = np.flatnonzero(tree.ancestors[row, new])
            assert [alive[n] for n in found] == path(parents, old)
            assert int(tree.token[row, new]) == tokens[old]
            assert int(tree.depth[row, new]) == len(found) - 1
            assert int(tree.parent[row, new]) == (alive.index(parents[old]) if old else NO_PARENT)


@given(forests(), st.lists(st.integers(0, 3), min_size=2 * SIZE, max_size=2 * SIZE))
def test_following_goes_as_deep_as_the_target_agrees(rows, says):
    tree, says = grow(rows), np.array(says).reshape(2, SIZE)
    # Siblings are distinct tokens in every real tree: of two equal ones keep the first.
    keep = np.array(tree.live)
    for row, (parents, tokens) in enumerate(rows):
        seen = set()
        for node in range(1, SIZE):
            if parents[node] >= 0 and ((parents[node], tokens[node]) in seen or not keep[row, parents[node]]):
                keep[row, node] = False
            seen.add((parents[node], tokens[node]))
    kept = Selection(node=jnp.broadcast_to(jnp.arange(SIZE), (2, SIZE)), live=jnp.array(keep))
    tree = jax.jit(trees.subtree)(tree, kept)
    verdict = jax.jit(follow, static_argnums=2)(tree, jnp.array(says), SIZE)
    for row, (parents, tokens) in enumerate(rows):
        node, walked = 0, [0]
        while True:
            matching = [
                n for n in range(1, SIZE) if keep[row, n] and parents[n] == node and tokens[n] == says[row, node]
            ]
            if not matching:
                break
            node = matching[0]
            walked.append(node)
        accepted = int(verdict.accepted[row])
        assert verdict.path[row, : accepted + 1].tolist() == walked
        assert set(verdict.path[row, accepted:].tolist()) == {node}
        assert int(verdict.next_token[row]) == says[row, node]


def test_smallest_size_counts_up_to_the_last_live_node():
    tree = grow([([NO_PARENT, 0, NO_PARENT, 1, *[NO_PARENT] * 3], [0] * SIZE)] * 2)
    assert int(trees.smallest_size(tree, (1, 2, 4, 7))) == 2  # node 3 is live: three nodes, but four slots
    assert int(trees.smallest_size(compact(tree), (1, 2, 3, 7))) == 2


def test_sizes_leave_out_what_saves_little():
    assert trees.sizes_up_to(5, (1, 2, 4, 8)) == (1, 2, 5)
    assert trees.sizes_up_to(26, (8, 16, 32)) == (8, 16, 26)
    assert trees.sizes_up_to(1, (1, 2)) == (1,)
    assert trees.sizes_up_to(9, ()) == (9,)
    chain = parse_method("ngram+chain,length=4")  # drafts whole chains or nothing
    assert chain.speculation(greedy=True, tree_sizes=(1, 2, 4)).verify_sizes == (1, 5)
    stops = parse_method("ngram+chain,length=4+beta-ts")
    assert stops.speculation(greedy=True, tree_sizes=(1, 2, 4)).verify_sizes == (1, 2, 5)


def test_one_node_is_put_where_several_would_be():
    values, new, outside = jnp.arange(24.0).reshape(2, 4, 3), jnp.full((2, 1, 3), -1.0), 4
    for slot in range(outside + 1):
        one = trees.put_at(values, jnp.array([slot]), new)
        several = trees.put_at(values, jnp.array([slot, outside]), jnp.concatenate([new, new], axis=1))
        np.testing.assert_array_equal(one, several)
        assert np.flatnonzero((np.asarray(one) == -1).all(axis=(0, 2))).tolist() == [slot][: slot < outside]
