"""PCT against its definition in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.eagle2 import Eagle2
from jaxspec.builders.pruned import Pruned
from jaxspec.decoding import tree as trees
from jaxspec.decoding.strategy import CostTable
from jaxspec.methods.method import parse_method
from jaxspec.rules.greedy import propose_top_k
from tests.builders.tables import children, grown, level, paths_of, prune, tables

NO_LEAF = 1e-9  # below every confidence of these tables
SAME = np.tile([0.6, 0.3, 0.08, 0.02], (4, 1))  # after every token


def test_a_tree_worked_out_by_hand():
    """Expanded at 0.2 and above: 0 and 1, then 00, then 000. Verified at 0.05 and above."""
    builder = Pruned(width=3, leaf=0.05, cost=0.2)
    expected = {
        "0": 0.6, "1": 0.3, "2": 0.08,
        "00": 0.36, "01": 0.18, "10": 0.18, "11": 0.09,
        "000": 0.216, "001": 0.108,
        "0000": 0.1296, "0001": 0.0648,
    }  # fmt: skip
    found = paths_of(prune(builder, grown(builder, SAME)))
    assert {"".join(map(str, path)): value for path, value in found.items()} == pytest.approx(expected)


def test_the_most_confident_are_kept_where_there_are_too_many():
    builder = Pruned(width=3, leaf=NO_LEAF, cost=0.2, total=6)
    found = paths_of(prune(builder, grown(builder, SAME)))
    assert set(found) == {(0,), (1,), (0, 0), (0, 0, 0), (0, 1)}  # of 01 and 10, of equal confidence, the first


def test_without_a_threshold_for_leaves_none_is_dropped():
    """All 120 nodes of four levels are worth expanding at 0.01; the default `total` would keep 63 of them."""
    even = np.tile([0.34, 0.33, 0.32, 0.01], (4, 1))
    builder = Pruned(width=3, depth=4, cost=0.01, leaf=0.0)
    tree = grown(builder, even)
    assert len(paths_of(tree)) == len(paths_of(prune(builder, tree))) == 3 + 9 + 27 + 81
    assert len(paths_of(prune(Pruned(width=3, depth=4, cost=0.01, leaf=NO_LEAF), tree))) == 63


def brute(table: np.ndarray, builder: Pruned) -> dict[tuple[int, ...], float]:
    """All nodes that PCT verifies without a limit on their number."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(builder.depth):
        below = {path: children(table, path, builder.width) for path in level}
        for path, offered in below.items():
            for rank, child in enumerate(offered):
                power = builder.power if rank == 0 else 1.0
                found[child] = found[path] * table[(0, *path)[-1], child[-1]] ** power
        level = [child for offered in below.values() for child in offered if found[child] >= (builder.cost or 0)]
        level = sorted(level, key=lambda path: -found[path])[: builder.limits.frontier]
    found.pop(())
    return {path: value for path, value in found.items() if value >= builder.leaf}


BUILDERS = [  # few, for each is compiled
    Pruned(width=3, depth=4, cost=0.07, leaf=0.05),
    Pruned(width=4, depth=2, cost=0.2, leaf=0.0),
    Pruned(width=1, depth=4, cost=0.6, leaf=0.05),
    Pruned(width=3, depth=3, cost=0.07, leaf=NO_LEAF, total=9),
    Pruned(width=3, depth=3, cost=0.15, leaf=0.05, power=0.4),
]


@given(tables(), st.sampled_from(BUILDERS))
def test_pruned_equals_its_definition(table, builder):
    kept = prune(builder, grown(builder, table))
    assert kept.token.shape[1] == builder.verified <= builder.total
    found, expected = paths_of(kept), brute(table, builder)
    best = sorted(expected.values(), reverse=True)[: builder.total - 1]
    np.testing.assert_allclose(sorted(found.values(), reverse=True), best, atol=1e-5)
    if len(expected) < builder.total:
        assert found.keys() == expected.keys()


@given(tables(), st.sampled_from([0.1, 0.34]))
def test_what_is_expanded_is_worth_it_and_fits(table, cost):
    builder = Pruned(depth=4, cost=cost, leaf=0.0)
    found = paths_of(grown(builder, table))
    assert all(value >= cost * (1 - 1e-5) for path, value in found.items() if any(p[:-1] == path for p in found))
    assert all(path in found for parent, value in found.items() if value > cost * 1.001 and len(parent) < 4
               for path in children(table, parent, builder.width))  # fmt: skip


@given(tables(), st.sampled_from([(3, 2, 3), (20, 3, 3), (12, 1, 4)]))
def test_without_thresholds_it_is_eagle2_that_expands_everything(table, settings):
    """The best of the whole tree, where EAGLE-2 has the best below its `width` best of each level."""
    total, width, depth = settings
    pruned = Pruned(width=width, depth=depth, cost=0.0, leaf=NO_LEAF, total=total)
    eagle2 = Eagle2(width=width, depth=depth, total=total)
    found, theirs = (paths_of(prune(builder, grown(builder, table))) for builder in (pruned, eagle2))
    best = sorted(brute(table, pruned).values(), reverse=True)[: total - 1]
    np.testing.assert_allclose(sorted(found.values(), reverse=True), best, atol=1e-5)
    assert sum(found.values()) >= sum(theirs.values()) - 1e-5
    if width == 1:
        assert found.keys() == theirs.keys()


def test_a_first_child_that_is_trusted_more_is_expanded_and_kept():
    """At power 0.5 the paths 0, 00, … have 0.77, 0.6, 0.46, 0.36 …, and the second children what they had."""
    found = paths_of(prune(Pruned(width=2, cost=0.4, leaf=0.2), grown(Pruned(width=2, cost=0.4, leaf=0.2), SAME)))
    assert found.keys() == {(0,), (1,), (0, 0)}
    trusting = Pruned(width=2, cost=0.4, leaf=0.2, power=0.5)
    found = paths_of(prune(trusting, grown(trusting, SAME)))
    expected = {"0": 0.6**0.5, "1": 0.3, "00": 0.6, "01": 0.6**0.5 * 0.3, "000": 0.6**1.5, "0000": 0.36}
    expected = {path: value for path, value in expected.items() if value >= 0.2}
    assert {"".join(map(str, path)): value for path, value in found.items()} == pytest.approx(expected)


def test_a_power_of_its_own_at_temperature_0():
    method = parse_method("eagle+pruned,cost=0.1,power=0.9,greedy_power=0.3")
    assert method.speculation(greedy=False).builder == method.builder
    assert method.speculation(greedy=True).builder == Pruned(cost=0.1, power=0.3, greedy_power=0.3)
    papers = parse_method("eagle+pruned,cost=0.1").builder
    assert papers.at_temperature_0 == papers == Pruned(cost=0.1, power=1.0, greedy_power=1.0)


def test_rows_grow_as_deep_as_each_is_sure():
    """Row 0 is certain and goes to the end; row 1 stops where nothing is probable."""
    table = np.array([[0.97, 0.01, 0.01, 0.01], [0.25] * 4, [0.25] * 4, [0.25] * 4])
    builder = Pruned(width=2, depth=5, cost=0.3, leaf=0.0)
    tree = prune(builder, grown(builder, table, roots=(0, 1)))
    assert max(map(len, paths_of(tree, 0))) == 5
    assert {len(path) for path in paths_of(tree, 1)} == {1}
    alone = [paths_of(prune(builder, grown(builder, table, roots=(root,)))) for root in (0, 1)]
    assert [paths_of(tree, row) for row in (0, 1)] == alone


def test_no_level_is_wider_than_what_is_worth_it():
    limits = lambda **settings: Pruned(**settings).limits
    assert limits(cost=0.1).frontier == 10
    assert limits(cost=0.001).frontier == 63  # no more of a level can be kept
    assert limits(cost=2.0).frontier == 1
    assert Pruned(cost=0.1, width=1).size == 11  # a chain
    assert limits(cost=0.1, width=2, depth=3).frontier == 4


@pytest.mark.parametrize("leaf", [0.0, 0.01])
def test_a_cost_of_almost_nothing_is_like_a_small_one(leaf):
    tiny, small = (Pruned(width=2, depth=3, leaf=leaf, cost=cost) for cost in (1e-310, 1e-5))
    assert tiny.limits == small.limits


def test_its_cost_is_that_of_a_level_wide_enough():
    """Were a level of 4 nodes to cost 0.2, 5 could be worth it; at the cost of 5 nodes, 4 are."""
    table = CostTable(plain=2.0, verify=((1, 2.0),), level=((1, 0.1), (4, 0.4), (8, 0.8)))
    resolved = Pruned().with_costs(table)
    assert resolved.cost == pytest.approx(0.25)
    assert resolved.limits.frontier == 4
    assert Pruned(cost=0.5).with_costs(table) == Pruned(cost=0.5)
    cheap = CostTable(plain=1.0, verify=((1, 1.0),), level=((1, 0.01), (16, 0.012)))
    assert Pruned().with_costs(cheap).cost == 0.012  # flat beyond the widest measured


def test_a_cost_that_is_not_known_is_asked_for():
    with pytest.raises(ValueError, match="cost is not measured yet; give cost="):
        grown(Pruned(), SAME)


def test_a_row_that_is_not_active_gets_nothing():
    builder = Pruned(cost=0.1)
    tree = trees.init_tree(jnp.zeros(2, jnp.int32), builder.size, None)
    active = jnp.array([True, False])
    tree, frontier = level(builder, propose_top_k, tree, trees.root_frontier(2), jnp.zeros((2, 1, 6)), active)
    assert tree.live.sum(axis=1).tolist() == [6, 1]
    assert frontier.live.any(axis=1).tolist() == [True, False]
