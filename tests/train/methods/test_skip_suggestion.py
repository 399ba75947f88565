"""Which set a search tries next: it finds the best of a landscape, and what it says follows from the trials alone."""

import numpy as np
import pytest

from jaxspec.drafters.layer_skip import SkipMask
from jaxspec.train.decoding_options import SkipSearch
from jaxspec.train.methods import skip_search
from jaxspec.train.methods.skip_search import Corner, Trial

SIZE = 16
WORTH = np.array([4, 3, 2, 1, *[-2] * 12]) / 10
TOGETHER = [0, 1]  # two that are worth less together


def score(corner: Corner) -> float:
    return float(WORTH @ corner - 0.5 * corner[TOGETHER].all())


def trial(corner: Corner, speedup: float) -> Trial:
    attention, mlp = (tuple(half.tolist()) for half in np.split(corner, 2))
    return Trial(SkipMask(attention=attention, mlp=mlp), speedup, acceptance_rate=0.5, tau=2.0)


def trials(count: int, tried: list[Trial] | None = None) -> list[Trial]:
    tried = [*(tried or [])]
    while len(tried) < count:
        corner = skip_search.suggest(tried, SIZE, 0)
        tried.append(trial(corner, score(corner)))
    return tried


@pytest.fixture(scope="module")
def found() -> list[Trial]:
    return trials(80)


def test_it_finds_the_best_of_65536_sets(found):
    assert max(each.speedup for each in found) == pytest.approx(0.7)  # by hand: 0, 2 and 3 without 1


def test_it_begins_with_nothing_left_out_and_tries_nothing_twice(found):
    assert not found[0].corner.any()
    assert len({each.corner.tobytes() for each in found}) == len(found)


@pytest.mark.parametrize("broken_off", [4, 33])
def test_a_search_that_is_broken_off_goes_on_as_if_it_had_not_been(broken_off: int, found):
    again = trials(40, found[:broken_off])
    assert [each.corner.tolist() for each in again] == [each.corner.tolist() for each in found[:40]]


def test_all_sets_of_few_blocks():
    tried = [trial(np.array(bits, bool), 0.0) for bits in np.ndindex(2, 2)]
    with pytest.raises(ValueError, match="all sets of 2 blocks were tried; lower --trials"):
        skip_search.suggest(tried, 2, 0)


def test_neighbours_differ_in_a_few_switches():
    rng = np.random.default_rng(0)
    parent = rng.random(SIZE) < 0.5
    apart = (skip_search.neighbours(rng, 500, [parent]) != parent).sum(axis=1)
    assert set(apart.tolist()) == {1, 2, 3, 4}


def test_expected_improvement_is_the_mean_of_what_lies_above_the_best():
    """Against an integral over a grid."""
    mean, deviation, best = np.array([0.3, 1.0, 1.7]), np.array([0.5, 0.1, 0.2]), 1.1
    x = np.linspace(-5, 8, 200_001)[:, None]
    density = np.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))
    integral = (np.maximum(x - best, 0) * density).sum(axis=0) * (x[1] - x[0])
    np.testing.assert_allclose(skip_search.expected_improvement(mean, deviation, best), integral, rtol=1e-4)


def test_improvement_counts_from_the_best_set_so_far(found, monkeypatch: pytest.MonkeyPatch):
    given = []
    monkeypatch.setattr(skip_search, "expected_improvement", lambda mean, _, best: given.append(best) or mean)
    skip_search.suggest(found[:20], SIZE, 0)
    assert given == [max(each.speedup for each in found[:20])]


def test_without_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"scikit-learn: pip install scikit-learn"):
        skip_search.search(SkipSearch(target=tmp_path))
