"""Trees: what growing, selecting and following keep true, on random trees against plain Python."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.chain import Chain
from jaxspec.builders.eagle2 import Eagle2
from jaxspec.builders.static import EAGLE_TREE, Static, parse_paths, show_paths
from jaxspec.decoding import tree as trees
from jaxspec.decoding.tree import NO_PARENT
from jaxspec.rules.greedy import follow, propose_top_k

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
    parents, tokens = (jnp.array(x) for x in zip(*rows, strict=True))
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


@given(forests())
def test_compacting_keeps_every_path(rows):
    tree = trees.compact(grow(rows))
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
    tree = trees.subtree(tree, jnp.broadcast_to(jnp.arange(SIZE), (2, SIZE)), jnp.array(keep))
    verdict = follow(tree, jnp.array(says), SIZE)
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
    assert int(trees.smallest_size(trees.compact(tree), (1, 2, 3, 7))) == 2


def test_sizes_leave_out_what_saves_little():
    assert trees.sizes_up_to(5, (1, 2, 4, 8)) == (1, 2, 5)
    assert trees.sizes_up_to(26, (8, 16, 32)) == (8, 16, 26)
    assert trees.sizes_up_to(1, (1, 2)) == (1,)
    assert trees.sizes_up_to(9, ()) == (9,)


def logits_by_rank(width, order):
    """Logits [1, width, V] by which the likeliest tokens come in the given order."""
    ranked = np.zeros(len(order))
    ranked[order] = -np.arange(len(order))
    return jnp.broadcast_to(jnp.array(ranked, jnp.float32), (1, width, len(order)))


def build(builder, vocab_size=6):
    """A tree grown to the end, every node proposing tokens 0, 1, 2 … in that order of likelihood."""
    tree, frontier = trees.init_tree(jnp.array([9]), builder.size, None), trees.root_frontier(1)
    for _ in range(builder.depth):
        logits = logits_by_rank(frontier.node.shape[1], list(range(vocab_size)))
        tree, frontier = builder.grow(propose_top_k, tree, frontier, logits, jnp.array([True]))
    return tree


def paths_of(tree):
    """The live paths as child ranks; tokens are ranks in `build`."""
    found = set()
    for node in np.flatnonzero(tree.live[0])[1:]:
        on_path = np.flatnonzero(tree.ancestors[0, node])[1:]
        found.add(tuple(int(tree.token[0, n]) for n in on_path))
    return found


def test_static_tree_has_exactly_its_paths():
    for builder in (Static(), Static(paths=parse_paths("0:1:2:00:01:10:000"))):
        assert paths_of(build(builder)) == set(builder.paths)
    assert len(EAGLE_TREE) == 25
    assert (Static().depth, Static().size) == (5, 26)


def test_static_tree_in_a_vocabulary_smaller_than_its_branching():
    assert paths_of(build(Static(), vocab_size=2)) == {p for p in EAGLE_TREE if max(p) < 2}


def test_chain_is_one_path():
    assert paths_of(build(Chain(length=3))) == {(0,), (0, 0), (0, 0, 0)}


def test_a_row_that_does_not_go_on_gets_no_nodes():
    for builder in (Chain(), Static()):
        tree = trees.init_tree(jnp.array([9, 9]), builder.size, None)
        logits = jnp.concatenate([logits_by_rank(1, [0, 1, 2, 3, 4])] * 2)
        tree, frontier = builder.grow(propose_top_k, tree, trees.root_frontier(2), logits, jnp.array([True, False]))
        assert tree.live[1].sum() == 1
        assert tree.live[0].sum() > 1
        assert not frontier.live[1].any()


@given(st.sets(st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5))
def test_paths_are_read_as_they_are_shown(paths):
    closed = {path[: i + 1] for path in paths for i in range(len(path))}
    assert parse_paths(show_paths(tuple(closed))) == tuple(closed)


def brute_eagle2(tables, total, depth, width):
    """EAGLE-2 in plain Python: expand the likeliest of each level, keep the likeliest of all. Paths of tokens."""
    by_confidence = lambda items: sorted(items, key=lambda item: (-item[1], len(item[0])))
    found, level = {}, [((), 0.0)]
    for _ in range(depth):
        children = []
        for path, confidence in level:
            log_probs = tables[path[-1] if path else 0]
            likeliest_tokens = np.argsort(-log_probs, kind="stable")[:width]
            children += [((*path, int(t)), confidence + log_probs[t]) for t in likeliest_tokens]
        found |= dict(children)
        level = by_confidence(children)[:width]
    return dict(by_confidence(found.items())[: total - 1])


@given(st.integers(0, 1000), st.sampled_from([(2, 1, 1), (5, 4, 1), (6, 3, 2), (12, 4, 3), (12, 2, 4)]))
def test_eagle2_equals_its_definition(seed, shape):
    """The drafter here is a table: the logits after a token depend on that token alone."""
    total, depth, width = shape  # few of them, for each compiles its own programs
    rng = np.random.default_rng(seed)
    tables = np.log(rng.dirichlet(np.ones(6) * 0.7, size=6)).astype(np.float32)
    builder = Eagle2(total=total, depth=depth, width=width)
    tree, frontier = trees.init_tree(jnp.zeros(1, jnp.int32), builder.size, None), trees.root_frontier(1)
    for _ in range(depth):
        logits = jnp.asarray(tables)[trees.take(tree.token, frontier.node)]
        tree, frontier = builder.grow(propose_top_k, tree, frontier, logits, jnp.ones(1, bool))
    kept = builder.prune(tree)
    assert kept.token.shape[1] == builder.verified
    parents, tokens = kept.parent[0].tolist(), kept.token[0].tolist()
    paths = {}
    for node in np.flatnonzero(kept.live[0])[1:].tolist():
        ids = path(parents, node)
        assert ids[0] == 0
        paths[tuple(tokens[i] for i in ids[1:])] = float(kept.log_confidence[0, node])
    expected = brute_eagle2(tables, total, depth, width)
    np.testing.assert_allclose(sorted(paths.values()), sorted(expected.values()), atol=1e-5)
    if len({round(value, 4) for value in expected.values()}) == len(expected):  # without ties the very same nodes
        assert paths.keys() == expected.keys()


def test_one_node_is_put_where_several_would_be():
    values, new, outside = jnp.arange(24.0).reshape(2, 4, 3), jnp.full((2, 1, 3), -1.0), 4
    for slot in range(outside + 1):
        one = trees.put_at(values, jnp.array([slot]), new)
        several = trees.put_at(values, jnp.array([slot, outside]), jnp.concatenate([new, new], axis=1))
        np.testing.assert_array_equal(one, several)
        assert np.flatnonzero((np.asarray(one) == -1).all(axis=(0, 2))).tolist() == [slot][: slot < outside]
