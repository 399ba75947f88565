"""Beta-TS: its posterior against a table worked out by hand, and its coin against the draws that the paper writes."""

import numpy as np
import pytest

from jaxspec.controllers.beta_ts import READINGS, BetaState, BetaTS
from jaxspec.controllers.posterior_update import BETA_FLOOR
from tests.controllers.rounds import MODELS, keys_of, round_of, signals

# (accepted, levels) -> what alpha and beta get, by reading. n and r by hand from arXiv:2406.03853, Algorithm 2.
TABLE = {
    "nothing accepted": (0, 4, {"compared": (0, 1), "printed": (-1, 2), "bonus": (0, 2)}),
    "the only draft rejected": (0, 1, {"compared": (0, 1), "printed": (-1, 2), "bonus": (0, 1)}),
    "the only draft accepted": (1, 1, {"compared": (1, 0), "printed": (0, 1), "bonus": (1, 0)}),
    "partly accepted": (2, 4, {"compared": (2, 1), "printed": (1, 2), "bonus": (2, 2)}),
    "the last one rejected": (3, 4, {"compared": (3, 1), "printed": (2, 2), "bonus": (3, 1)}),
    "all accepted": (4, 4, {"compared": (4, 0), "printed": (3, 1), "bonus": (4, 0)}),
    "the cap reached, all accepted": (12, 12, {"compared": (12, 0), "printed": (11, 1), "bonus": (12, 0)}),
    "the cap reached, nothing accepted": (0, 12, {"compared": (0, 1), "printed": (-1, 2), "bonus": (0, 2)}),
    "cut by EOS after two of them": (2, 2, {"compared": (2, 0), "printed": (1, 1), "bonus": (2, 0)}),
    "nothing drafted, or done": (0, 0, {"compared": (0, 0), "printed": (0, 0), "bonus": (0, 0)}),
}


def pairs(state: BetaState) -> list[tuple[float, float]]:
    return list(zip(state.alpha.tolist(), state.beta.tolist(), strict=True))


@pytest.mark.parametrize("reading", READINGS)
def test_updates_are_the_tables(reading: str):
    """All cases in one batch, one row each: so rows do not influence each other either."""
    controller = BetaTS(prior_alpha=5.0, prior_beta=2.0, reading=reading)
    accepted, levels, added = zip(*TABLE.values(), strict=True)
    state = controller.update(controller.init(len(TABLE)), round_of(accepted, levels))
    assert pairs(state) == [(5 + by[reading][0], 2 + by[reading][1]) for by in added]
    again = controller.update(state, round_of(accepted, levels))
    assert pairs(again) == [(5 + 2 * by[reading][0], 2 + 2 * by[reading][1]) for by in added]


def test_alpha_stays_above_zero():
    controller = BetaTS(prior_alpha=1.5, reading="printed")
    state, seen = controller.init(1), []
    for _ in range(3):
        state = controller.update(state, round_of([0], [4]))
        seen.append(state.alpha.item())
    assert seen == pytest.approx([0.5, BETA_FLOOR, BETA_FLOOR])
    assert state.beta.item() == 7


def test_the_coin_is_a_draw_from_the_posterior_and_then_from_theta():
    """Two tokens of many sequences, by the coin and by draws from Beta and Bernoulli, as the paper writes them."""
    number, alpha, beta = 200_000, 2.0, 1.0
    controller = BetaTS(prior_alpha=alpha, prior_beta=beta)
    state = controller.init(number)
    half = np.full(number, 0.5)
    seen, keys = signals(half, half), [keys_of(number, seed) for seed in range(2)]
    coins = np.array([controller.keep_drafting(MODELS, each, state, seen) for each in keys])

    rng = np.random.default_rng(0)
    fresh = rng.random((2, number)) < rng.beta(alpha, beta, (2, number))
    shared = rng.random((2, number)) < rng.beta(alpha, beta, (1, number))  # one theta a round, which the paper's is not
    share = lambda chi: np.array([np.mean((chi[0] == i) & (chi[1] == j)) for i in (0, 1) for j in (0, 1)])
    noise = 5 * np.sqrt(0.25 / number)
    assert np.abs(share(coins) - share(fresh)).max() < 2 * noise
    assert abs(share(coins)[3] - (alpha / (alpha + beta)) ** 2) < noise
    assert abs(share(shared)[3] - share(fresh)[3]) > 5 * noise, "the test cannot tell dependent draws"
