"""Drafting on by expected gain: the decision by enumeration, the correction of confidences by what was accepted."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Int

from jaxspec.builders import Chain
from jaxspec.controllers.expected_gain import ExpectedGain, GainState
from jaxspec.decoding.round_records import RoundCounts
from tests.controllers.rounds import MODELS, keys_of, round_of, signals

COST, VERIFY = 0.1, ((1, 1.0), (2, 1.5), (4, 1.6), (8, 2.0))
CONTROLLER = ExpectedGain(cost=COST, verify=VERIFY)
DEPTH = 7
KEEP_DRAFTING, ON_LEVEL, UPDATE = map(
    jax.jit, (partial(CONTROLLER.keep_drafting, MODELS), CONTROLLER.on_level, CONTROLLER.update)
)
BEGIN = jax.jit(lambda keys, state, unfinished: CONTROLLER.begin(MODELS, keys, state, unfinished, Chain(DEPTH)))


def odds(chance: np.ndarray | float) -> np.ndarray:
    return np.log(chance / (1 - np.asarray(chance)))


def begun(rows: int, mean: float = 0.75, earned: float = 1.4, unfinished: list[bool] | None = None) -> GainState:
    """The state of rows with calibrated confidences and `earned` tokens per unit of time; `mean` is certain."""
    state = dataclasses.replace(
        CONTROLLER.init(rows),
        weights=jnp.tile(jnp.array([0.0, 1.0]), (rows, 1)),
        accepted=jnp.full(rows, 1e7 * mean),
        rejected=jnp.full(rows, 1e7 * (1 - mean)),
        tokens=jnp.full(rows, earned),
        time=jnp.ones(rows),
    )
    open_ = jnp.ones(rows, bool) if unfinished is None else jnp.array(unfinished)
    return BEGIN(keys_of(rows), state, open_)[0]


def cost(levels: int, rows: int = 1) -> float:
    """The cost of a round, by hand."""
    nodes = rows * next(size for size, _ in VERIFY if size >= levels + 1)
    sizes, costs = zip(*VERIFY, strict=True)
    at = lambda n: np.interp(n, sizes, costs) + max(n - 8, 0) * 0.1
    return max(levels, 1) * COST * at(rows) + at(nodes)


@pytest.mark.parametrize("mean", [0.3, 0.75, 0.95])
@pytest.mark.parametrize("earned", [1.0, 1.6, 2.5])
def test_a_row_drafts_on_while_some_number_of_levels_pays(mean: float, earned: float):
    paths = np.array([0.9, 0.5, 0.25, 0.1])
    seen = set()
    for level in range(1, DEPTH + 1):
        found = []
        for path in paths:
            state = dataclasses.replace(begun(1, mean, earned), chance=jnp.array([path], jnp.float32))
            now = signals([0.5], [0.5], level=level)
            found.append(KEEP_DRAFTING(keys_of(1), state, now)[0].item())
            gain = lambda more, path=path: path * sum(mean**i for i in range(1, more + 1))
            more = range(1, DEPTH - level + 1)
            assert found[-1] == any(gain(n) > earned * (cost(level + n) - cost(level)) for n in more)
        assert found == sorted(found, reverse=True)
        seen |= set(found)
    assert seen == {True, False} or earned == 1.0 or mean == 0.3


def test_the_rows_of_a_batch_decide_together():
    """By the tokens of those that can draft on, and the earnings of all that are not done."""
    chances, unfinished = np.array([0.9, 0.02, 0.5, 0.9]), [True, True, True, False]
    active = np.array([True, True, False, False])
    decided = set()
    for earned in (0.05, 0.2, 0.8, 3.0):
        state = dataclasses.replace(begun(4, 0.6, earned, unfinished), chance=jnp.asarray(chances, jnp.float32))
        now = dataclasses.replace(signals([0.5] * 4, [0.5] * 4, level=2), active=jnp.asarray(active))
        found = KEEP_DRAFTING(keys_of(4), state, now).tolist()
        gain = lambda more: chances[active].sum() * sum(0.6**i for i in range(1, more + 1))
        pays = any(gain(n) > 3 * earned * (cost(2 + n, 4) - cost(2, 4)) for n in range(1, DEPTH - 1))
        assert found == [pays, pays, False, False]
        decided.add(pays)
    assert decided == {True, False}


def test_the_chance_of_a_path_is_the_product_of_its_levels():
    state = begun(2)
    drafted = np.array([[0.8, 0.5, 0.9], [0.3, 0.6, 0.2]])
    state = dataclasses.replace(state, weights=jnp.array([[0.0, 1.0], [1.0, 0.5]]))
    for level, path in enumerate(np.cumprod(drafted, axis=1).T, 1):
        state = ON_LEVEL(state, signals(path, path, level=level))
    corrected = 1 / (1 + np.exp(-1 - 0.5 * odds(drafted[1])))
    np.testing.assert_allclose(state.chance, [drafted[0].prod(), corrected.prod()], rtol=1e-4)
    np.testing.assert_allclose(state.odds[:, :3], odds(drafted), rtol=1e-3)


def test_it_learns_what_confidences_are_worth():
    """Drafts whose log-odds of acceptance are 1.5 + 0.4 times their own: the weights come near, whatever the prior."""
    rng = np.random.default_rng(0)
    own = rng.normal(0, 2, (3000, 4))
    right = rng.random(own.shape) < 1 / (1 + np.exp(-1.5 - 0.4 * own))
    accepted = np.cumprod(right, axis=1).sum(axis=1)

    def one_round(state: GainState, seen: tuple[Array, Int[Array, ""]]) -> tuple[GainState, None]:
        drafted, count = seen
        state = dataclasses.replace(state, odds=jnp.zeros_like(state.odds).at[:, :4].set(drafted))
        counts = dataclasses.replace(round_of([0], [4]), committed=count[None] + 1, accepted=count[None])
        return CONTROLLER.update(state, counts), None

    seen = (jnp.asarray(own, jnp.float32), jnp.asarray(accepted, jnp.int32))
    state = jax.lax.scan(one_round, CONTROLLER.init(1), seen)[0]
    np.testing.assert_allclose(state.weights[0], [1.5, 0.4], atol=0.4)
    compared = np.minimum(accepted + 1, 4)
    assert (state.accepted / (state.accepted + state.rejected)).item() == pytest.approx(
        accepted.sum() / compared.sum(), abs=0.1
    )
    assert (state.tokens / state.time).item() == pytest.approx((1 + accepted.mean()) / cost(4), rel=0.1)


def test_what_was_never_drafted_falls_back_to_the_prior_and_a_row_that_is_done_keeps_it():
    start = CONTROLLER.init(3)

    def after(state: GainState, counts: RoundCounts, rounds: int) -> GainState:
        return jax.lax.fori_loop(0, rounds, lambda _, state: CONTROLLER.update(state, counts), state)

    state = after(start, round_of([0, 0, 0], [3, 3, 3]), 40)
    later = after(state, dataclasses.replace(round_of([0] * 3, [0] * 3), committed=jnp.array([1, 1, 0])), 300)
    mean = lambda state: np.asarray(state.accepted / (state.accepted + state.rejected))
    assert (mean(state) < 0.1).all() and (mean(later)[:2] > 0.7).all()
    np.testing.assert_allclose(later.weights[:2], start.weights[:2], atol=0.05)
    for left, right in zip(jax.tree.leaves(later), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(left[2], right[2])


def test_a_round_takes_as_long_as_its_deepest_and_largest_row_for_all_that_are_not_done():
    """The last row is done. The second drafted nothing, and pays for the others' drafts too."""
    state = dataclasses.replace(begun(4), tokens=jnp.full(4, 7.0), time=jnp.full(4, 5.0))
    counts = dataclasses.replace(
        round_of([1, 0, 2, 0], [2, 0, 3, 0]), committed=jnp.array([2, 1, 3, 0]), verified=jnp.array([2, 0, 6, 0])
    )
    after = UPDATE(state, counts)
    taken = 3 * COST + VERIFY[-1][1]  # three levels, and seven nodes with the root
    np.testing.assert_allclose(after.time, [0.98 * 5 + taken] * 3 + [5], rtol=1e-6)
    np.testing.assert_allclose(after.tokens, [0.98 * 7 + 2, 0.98 * 7 + 1, 0.98 * 7 + 3, 7], rtol=1e-6)
    earned = BEGIN(keys_of(4), after, jnp.array([True, True, True, False]))[0].earned
    np.testing.assert_allclose(earned, (np.asarray(after.tokens) / np.asarray(after.time))[:3].sum(), rtol=1e-6)
