"""The predicted time of a run from its counts and made-up times of its pieces, and the predicted speedup."""

import pytest

from jaxspec.costs.timing import PieceCosts
from jaxspec.decoding.round_records import RoundCounts, from_rows
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate.cost_model import RunCosts, eq14_speedup, run_costs

TARGET = {1: 1.0, 4: 1.5, 8: 2.0}
SIZES = (1, 4, 8)


def rounds(*rows: tuple[int, int, int]) -> RoundCounts:
    """Histories from (committed, levels, verified)."""
    return from_rows([(new, new - 1, levels, verified, verified, new) for new, levels, verified in rows])


def test_plain_is_one():
    assert run_costs([[rounds((1, 0, 0), (1, 0, 0))]], PieceCosts(TARGET[1], TARGET), (1,)).speedup == 1


def test_by_hand():
    """Three nodes and the root fit 4, four do not; a round without drafts pays one token."""
    history = rounds((3, 3, 3), (5, 4, 4), (1, 0, 0))
    costs = run_costs([[history]], PieceCosts(TARGET[1], TARGET, 0.1), SIZES)
    assert (costs.plain, costs.drafting, costs.verification, costs.control) == pytest.approx(
        (9, 0.7, 1.5 + 2.0 + 1.0, 0)
    )
    assert costs.speedup == pytest.approx(9 / (0.7 + 4.5))


def test_control_is_paid_by_level_and_by_round():
    history = rounds((3, 3, 3), (5, 4, 4), (1, 0, 0))
    costs = run_costs([[history]], PieceCosts(TARGET[1], TARGET, 0.1, control_level=0.01, control_round=0.2), SIZES)
    assert costs.control == pytest.approx(7 * 0.01 + 3 * 0.2)
    assert costs.speedup == pytest.approx(9 / (0.7 + 4.5 + 0.67))


def test_a_round_without_drafts_has_a_cost_of_its_own():
    history = rounds((3, 3, 3), (1, 0, 0), (1, 2, 0))  # in the last one nothing that was drafted is verified
    costs = run_costs([[history]], PieceCosts(TARGET[1], TARGET, 0.1, rest=0.5, idle=1.2), SIZES)
    assert (costs.verification, costs.rest) == pytest.approx((1.5 + 1.2 + 1.0, 2 * 0.5))


def test_the_rest_of_a_round_is_paid_once_a_round_by_plain_decoding_too():
    history = rounds((3, 3, 3), (5, 4, 4), (1, 0, 0))
    costs = run_costs([[history]], PieceCosts(TARGET[1], TARGET, 0.1, rest=0.5, plain_rest=0.25), SIZES)
    assert (costs.plain, costs.rest, costs.whole) == pytest.approx((9 * 1.25, 1.5, 0.7 + 4.5 + 1.5))
    assert costs.speedup == pytest.approx(9 * 1.25 / 6.7)


def test_only_compiled_sizes_are_used():
    assert run_costs([[rounds((2, 1, 1))]], PieceCosts(TARGET[1], TARGET), (8,)).speedup == pytest.approx(2 / 2.0)


def test_a_batch_goes_at_the_pace_of_its_slowest_row():
    batch = [rounds((4, 3, 3), (1, 1, 1)), rounds((1, 2, 7), (1, 0, 0), (1, 0, 0))]
    pieces = PieceCosts(TARGET[1], TARGET, 0.1, control_level=0.01, control_round=0.2)
    together = RunCosts(3, plain=5.0, drafting=0.4, verification=2.0 + 1.5 + 1.0, control=0.04 + 0.6, rest=0.0)
    found = run_costs([batch], pieces, SIZES)
    assert vars(found) == pytest.approx(vars(together))
    alone = run_costs([[row] for row in batch], pieces, SIZES)
    assert alone.plain == 5 + 3
    assert alone.control == pytest.approx(0.06 + 5 * 0.2)


def test_nothing_decoded():
    assert run_costs([[rounds()]], PieceCosts(TARGET[1], TARGET, 0.1), SIZES).speedup == 0


def test_eq14_as_the_paper_prints_it():
    counts = statistics_of([from_rows([[3, 2, 4, 4, 4, 3], [1, 0, 4, 4, 4, 1], [5, 4, 4, 4, 4, 5]])])
    v, r, alpha = counts.draft_accuracy, counts.draft_share, 0.25
    assert (v, r) == (6 / 12, 6 / 9)
    assert eq14_speedup(counts, alpha) == pytest.approx(v / ((alpha - v) * r + v))
    # 12 drafted tokens at a quarter of a forward, and 3 that the target added: 6 forwards for 9 tokens.
    assert eq14_speedup(counts, alpha) == pytest.approx(9 / 6)


def test_eq14_where_nothing_was_accepted_or_drafted():
    assert eq14_speedup(statistics_of([from_rows([[1, 0, 4, 4, 4, 1]])]), 0.25) == pytest.approx(1 / 2)
    assert eq14_speedup(statistics_of([from_rows([[1, 0, 0, 0, 0, 1]])]), 0.0) == 1
    assert eq14_speedup(statistics_of([]), 0.25) == 0
