"""The modelled speedup on made-up tables, and the measuring of real ones."""

import numpy as np
import pytest

from jaxspec.evaluate import cost
from jaxspec.evaluate.cost import modelled_speedup

TARGET = {1: 1.0, 4: 1.5, 8: 2.0}
SIZES = (1, 4, 8)


def rounds(*rows: tuple[int, int, int]) -> np.ndarray:
    """Histories from (committed, levels, verified)."""
    return np.array([(committed, committed - 1, levels, verified, verified) for committed, levels, verified in rows])


def test_plain_is_one():
    assert modelled_speedup([[rounds((1, 0, 0), (1, 0, 0))]], TARGET, 0.0, (1,)) == 1


def test_by_hand():
    """Three nodes and the root fit 4, four do not; a round without drafts pays one token."""
    history = rounds((3, 3, 3), (5, 4, 4), (1, 0, 0))
    assert modelled_speedup([[history]], TARGET, 0.1, SIZES) == pytest.approx(9 / ((0.3 + 1.5) + (0.4 + 2.0) + 1.0))


def test_only_compiled_sizes_are_used():
    assert modelled_speedup([[rounds((2, 1, 1))]], TARGET, 0.0, (8,)) == pytest.approx(2 / 2.0)


def test_a_batch_goes_at_the_pace_of_its_slowest_row():
    batch = [rounds((4, 3, 3), (1, 1, 1)), rounds((1, 2, 7), (1, 0, 0), (1, 0, 0))]
    modelled = (3 * 0.1 + 2.0) + (1 * 0.1 + 1.5) + 1.0
    assert modelled_speedup([batch], TARGET, 0.1, SIZES) == pytest.approx(5 / modelled)
    alone = [[row] for row in batch]
    assert modelled_speedup(alone, TARGET, 0.1, SIZES) != pytest.approx(5 / modelled)


def test_nothing_decoded():
    assert modelled_speedup([[np.zeros((0, 5), int)]], TARGET, 0.1, SIZES) == 0


def test_jobs_take_turns_and_a_unit_is_what_the_job_says(monkeypatch: pytest.MonkeyPatch):
    """A clock that only the jobs move: one takes 2 s an iteration, the other 3 s for each of two units."""
    now, calls = [0.0], []

    def job(name: str, seconds: float, units: int) -> cost.Job:
        def run(iterations: int) -> int:
            now[0] += seconds * iterations
            calls.append(name)
            return units * iterations

        return run

    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    assert cost.seconds_per_unit([job("a", 2.0, 1), job("b", 6.0, 2)]) == [2.0, 3.0]
    assert calls[-4:] == ["a", "b", "a", "b"]
