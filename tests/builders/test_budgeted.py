"""The tree with the most expected tokens per second, against all trees that could be kept."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.budgeted import Budgeted
from jaxspec.decoding import tree as trees
from jaxspec.decoding.strategy import CostTable
from jaxspec.methods.method import parse_method
from tests.builders.tables import Paths, grown, paths_of, prune, tables

FLAT = ((1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0), (16, 1.0))
STEEP = ((1, 1.0), (2, 1.4), (4, 1.5), (8, 2.0), (16, 3.5))
JUMP = ((1, 1.0), (4, 1.1), (16, 4.0))
SMALL = Budgeted(width=2, depth=3, cost=0.1, verify=STEEP)


def rate(builder: Budgeted, kept: Any, found: Paths, drafted: int) -> float:
    """The objective, from its definition: tokens by the time of a forward over one token."""
    tokens = 1 + sum(found[path] for path in kept)
    time = next(cost for size, cost in builder.buckets if size > len(kept))
    return tokens / (drafted * (builder.cost or 0) + time)


def verified(builder: Budgeted, table: np.ndarray) -> Paths:
    return paths_of(prune(builder, grown(builder, table)))


def closed(paths: Any) -> bool:
    return all(len(path) == 1 or path[:-1] in paths for path in paths)


SETTINGS = [  # few, for each is compiled
    (FLAT, 0.5, 16, 1.0), (FLAT, 0.01, 5, 0.5), (STEEP, 0.01, 16, 1.0), (STEEP, 0.5, 2, 1.0), (JUMP, 0.01, 5, 0.5),
]  # fmt: skip


@given(tables(), st.sampled_from(SETTINGS))
def test_no_tree_that_could_be_kept_has_a_higher_rate(table, settings):
    verify, cost, total, power = settings
    builder = dataclasses.replace(SMALL, verify=verify, cost=cost, total=total, power=power)
    tree = grown(builder, table)
    kept, found = prune(builder, tree), paths_of(tree)
    assert kept.token.shape[1] == builder.verified
    chosen, drafted = set(paths_of(kept)), max(map(len, found))
    assert closed(chosen)
    trees: list[Any] = [()]
    for path in sorted(found, key=len):
        trees += [(*tree, path) for tree in trees if len(path) == 1 or path[:-1] in tree]
    best = max(rate(builder, tree, found, drafted) for tree in trees if len(tree) < builder.verified)
    assert rate(builder, chosen, found, drafted) == pytest.approx(best, rel=1e-5)


def best_of(builder: Budgeted, found: Paths, drafted: int) -> float:
    ranked = sorted(found, key=lambda path: -found[path])
    return max(rate(builder, ranked[: size - 1], found, drafted) for size, _ in builder.buckets)


@given(tables(), st.sampled_from([(FLAT, 0.5, 0.5), (STEEP, 0.01, 1.0), (JUMP, 0.01, 0.5)]))
def test_a_row_drafts_on_where_that_is_expected_to_pay(table, settings):
    verify, cost, power = settings
    builder = dataclasses.replace(SMALL, verify=verify, cost=cost, power=power, depth=4)
    found = paths_of(grown(builder, table))
    last = max(map(len, found))
    ranked = sorted(found, key=lambda path: -found[path])
    for level in range(1, min(last + 1, builder.depth)):
        so_far = {path: value for path, value in found.items() if len(path) <= level}
        reached = [path for path in ranked if len(path) == level][: builder.width]
        mean, expected, rates = found[reached[0]] ** (1 / level), so_far, []
        for more in range(1, builder.depth - level + 1):
            expected = expected | {(*path, *[99] * more): found[path] * mean**more for path in reached}
            rates.append(best_of(builder, expected, level + more))
        better = max(rates) / best_of(builder, so_far, level)
        assert better >= 1 - 1e-5 if level < last else better <= 1 + 1e-5


SAME = np.tile([0.6, 0.3, 0.08, 0.02], (4, 1))  # after every token


def test_trees_worked_out_by_hand():
    """Paths of 0.6, 0.36, 0.3, 0.216, 0.18 twice, 0.1296 … where two of each level are expanded.

    If a forward costs the same for any number of nodes, all are kept, and a level pays until 0.6^D + 0.3 * 0.6^(D-1)
    falls below the cost of a level in tokens. If verification is expensive, only the most confident nodes are kept.
    """
    chosen = lambda **settings: verified(Budgeted(**settings), SAME).keys()
    small = {"width": 2, "depth": 2, "cost": 0.05}
    assert chosen(**small, verify=FLAT) == {(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)}
    # 1.6 tokens in 1.1 forwards and 0.05 of drafting: 1.39. A second level would do better: 1, 1.6, 2.26 and 2.71
    # tokens in 1, 1.1, 1.5 and 5 forwards and 0.1 of drafting are 0.91, 1.33, 1.41 and 0.53.
    assert chosen(**small, verify=((1, 1.0), (2, 1.1), (4, 1.5), (8, 5.0))) == {(0,), (1,), (0, 0)}
    assert chosen(**small, verify=((1, 1.0), (2, 9.0), (4, 9.0), (8, 9.0))) == set()


def test_the_time_of_drafting_is_that_of_the_levels_drafted():
    """One level at the price of a forward: 1.6 tokens in 2.5 forwards are better than 1.9 in 3.5. After ten levels the
    larger tree would be better: 1.9 tokens in 12.5 forwards, 1.6 in 11.5."""
    verify = ((1, 1.0), (2, 1.5), (4, 2.5), (8, 5.0), (16, 9.0))
    assert verified(Budgeted(width=2, total=16, cost=1.0, verify=verify), SAME).keys() == {(0,)}


def test_it_looks_further_ahead_than_one_level():
    """After one level the second and third do not pay, because three or four nodes take much longer to verify than two.
    Seven levels pay, because eight hardly take longer than four."""
    builder = Budgeted(width=1, depth=7, total=8, cost=0.05, verify=((1, 1.0), (2, 1.05), (4, 2.5), (8, 2.6)))
    sure = np.tile([0.97, 0.01, 0.01, 0.01], (4, 1))
    assert max(map(len, paths_of(grown(builder, sure)))) == 7


def test_expensive_levels_are_few():
    drafted = lambda cost: max(map(len, paths_of(grown(Budgeted(cost=cost, verify=FLAT, width=2), SAME))))
    assert drafted(0.5) == 1
    assert set(paths_of(grown(dataclasses.replace(SMALL, depth=1), SAME))) == {(0,), (1,)}
    assert drafted(0.5) <= drafted(0.1) <= drafted(0.001) == 10


def test_rows_decide_together():
    table = np.array([[0.97, 0.01, 0.01, 0.01], [0.25] * 4, [0.25] * 4, [0.1, 0.1, 0.1, 0.7]])
    together = grown(SMALL, table, roots=(0, 1, 3))
    found = [paths_of(together, row) for row in range(3)]
    (drafted,) = set(trees.levels(together).tolist())
    ranked = [sorted(paths, key=lambda path: -paths[path]) for paths in found]

    def rate_of_all(size: int, cost: float) -> float:
        tokens = sum(
            1 + sum(paths[path] for path in each[: size - 1]) for paths, each in zip(found, ranked, strict=True)
        )
        return tokens / (drafted * 0.1 + cost)

    best, _ = max(SMALL.buckets, key=lambda bucket: rate_of_all(*bucket))
    kept = prune(SMALL, together)
    assert [set(paths_of(kept, row)) for row in range(3)] == [set(each[: best - 1]) for each in ranked]
    alone = [len(paths_of(prune(SMALL, grown(SMALL, table, roots=(root,))))) + 1 for root in (0, 1, 3)]
    assert min(alone) < best <= max(alone)


def test_rows_that_draft_nothing_do_not_count():
    together, alone = grown(SMALL, SAME, roots=(0,) * 9, finished=tuple(range(1, 9))), grown(SMALL, SAME)
    assert paths_of(together) == paths_of(alone) and not paths_of(together, 1)
    assert paths_of(prune(SMALL, together)) == paths_of(prune(SMALL, alone))


def test_rows_that_are_alike_decide_as_one():
    together, alone = grown(SMALL, SAME, roots=(0, 1, 2)), grown(SMALL, SAME)
    for row in range(3):
        assert paths_of(together, row) == paths_of(alone)
        assert paths_of(prune(SMALL, together), row) == paths_of(prune(SMALL, alone))


def test_confidence_that_is_trusted_more_makes_larger_trees():
    nodes = [len(verified(dataclasses.replace(SMALL, power=power), SAME)) for power in (2.0, 1.0, 0.3)]
    assert nodes == sorted(nodes) and nodes[0] < nodes[-1]


def test_more_is_trusted_of_the_first_child_alone():
    found = paths_of(grown(dataclasses.replace(SMALL, power=0.5, depth=2), SAME))
    assert found[0,] == pytest.approx(0.6**0.5) and found[1,] == pytest.approx(0.3)
    assert found[0, 0] == pytest.approx(0.6) and found[0, 1] == pytest.approx(0.3 * 0.6**0.5)
    assert found[1, 0] == pytest.approx(0.3 * 0.6**0.5)


def test_at_temperature_0_it_trusts_them_more():
    method = parse_method("eagle+budgeted,power=0.9,greedy_power=0.3")
    assert method.speculation(greedy=False).builder == method.builder
    assert method.speculation(greedy=True).builder == Budgeted(power=0.3, greedy_power=0.3)


def test_costs_that_are_not_known_are_asked_for_and_filled_in():
    with pytest.raises(ValueError, match="its costs are not measured yet"):
        _ = Budgeted(cost=0.1).buckets
    table = CostTable(plain=2.0, verify=((1, 2.0), (8, 3.0)), level=((1, 0.1), (4, 0.25)))
    assert Budgeted(width=4).with_costs(table) == Budgeted(width=4, cost=0.125, verify=((1, 1.0), (8, 1.5)))
    given_ = Budgeted(cost=0.5, verify=FLAT)
    assert given_.with_costs(table) == given_
    assert not given_.needs_costs


def test_a_tree_smaller_than_the_table_costs_what_holds_it():
    assert Budgeted(width=1, depth=4, cost=0.1, verify=STEEP).buckets == ((1, 1.0), (2, 1.4), (5, 2.0))
