"""Trees of a fixed shape have exactly the nodes that are listed."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.chain import Chain
from jaxspec.builders.static import EAGLE_TREE, Static, parse_paths, show_paths
from jaxspec.decoding import tree as trees
from jaxspec.rules.greedy import propose_top_k
from tests.builders.tables import grown, level, paths_of

FALLING = np.array([32, 16, 8, 4, 2, 1]) / 63  # after every token: so that tokens are the ranks of children


def paths(builder: Chain | Static, vocab_size: int = 6) -> set[tuple[int, ...]]:
    return set(paths_of(grown(builder, np.tile(FALLING[:vocab_size], (vocab_size, 1)))))


def test_static_tree_has_exactly_its_paths():
    for builder in (Static(), Static(paths=parse_paths("0:1:2:00:01:10:000"))):
        assert paths(builder) == set(builder.paths)
    assert len(EAGLE_TREE) == 25
    assert (Static().depth, Static().size) == (5, 26)


def test_static_tree_in_a_vocabulary_smaller_than_its_branching():
    assert paths(Static(), vocab_size=2) == {p for p in EAGLE_TREE if max(p) < 2}


def test_chain_is_one_path():
    assert paths(Chain(length=3)) == {(0,), (0, 0), (0, 0, 0)}


def test_a_row_that_is_not_active_gets_no_nodes():
    for builder in (Chain(), Static()):
        tree, active = trees.init_tree(jnp.array([1, 1]), builder.size, None), jnp.array([True, False])
        logits = jnp.log(jnp.broadcast_to(jnp.asarray(FALLING, jnp.float32), (2, 1, 6)))
        tree, frontier = level(builder, propose_top_k, tree, trees.root_frontier(2), logits, active)
        assert tree.live[1].sum() == 1
        assert tree.live[0].sum() > 1
        assert not frontier.live[1].any()


@given(st.sets(st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5))
def test_paths_are_read_as_they_are_shown(paths):
    closed = {path[: i + 1] for path in paths for i in range(len(path))}
    assert parse_paths(show_paths(tuple(closed))) == tuple(closed)
