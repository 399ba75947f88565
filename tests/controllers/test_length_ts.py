"""Thompson sampling of the length: its counts by hand, its choice by brute force, its draws against NumPy's."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Int, Key

from jaxspec.builders import Chain, Static
from jaxspec.controllers.length_ts import LIKENESS, LengthState, LengthTS
from jaxspec.controllers.posterior_update import draw_beta
from jaxspec.controllers.round_cost import DISCOUNT, LONGEST, Density, count_density
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from tests.controllers.rounds import MODELS, keys_of, round_of, signals
from tests.lossless.harness import models, requests, run, speculation

FLAT = ((1, 1.0),)
STEEP = ((1, 1.0), (2, 1.5), (4, 1.6), (8, 2.0))
SURE = 1e7


def sure_of(controller: LengthTS, chances: np.ndarray) -> LengthState:
    """The state of rows whose acceptance probabilities [B positions] are almost certain."""
    known = jnp.asarray(np.pad(chances, ((0, 0), (0, LONGEST - chances.shape[1]))), jnp.float32)
    return dataclasses.replace(controller.init(len(chances)), accepted=SURE * known, rejected=SURE * (1 - known))


def chosen(
    controller: LengthTS, state: LengthState, builder: TreeBuilder, unfinished: list[bool] | None = None
) -> list[int]:
    """The length of each row's round."""
    rows = state.length.shape[0]
    open_ = jnp.ones(rows, bool) if unfinished is None else jnp.array(unfinished)
    begun, drafts = controller.begin(MODELS, keys_of(rows), state, open_, builder)
    assert drafts.tolist() == (np.asarray(open_) & (np.asarray(begun.length) > 0)).tolist()
    return begun.length.tolist()


def expected(chances: np.ndarray, length: int) -> float:
    """Expected tokens of a round: the sum over every possible number of accepted drafts."""
    total = 0.0
    for accepted in range(length + 1):
        reached = np.prod(chances[:accepted])
        total += (accepted + 1) * reached * (1 - chances[accepted] if accepted < length else 1)
    return total


@pytest.mark.parametrize("verify", [FLAT, STEEP])
def test_the_length_is_the_best_by_brute_force(verify):
    rng = np.random.default_rng(0)
    sizes = dict(verify)
    seen = set()
    for cost, low in itertools.product((0.02, 0.1, 0.5), (0.05, 0.5, 0.9)):
        chances = rng.uniform(low, 1, (1, 8))
        controller = LengthTS(cost=cost, verify=verify)
        hold = lambda nodes: sizes[min((n for n in sizes if n >= nodes), default=max(sizes))]
        rate = {n: expected(chances[0], n) / (max(n, 1) * cost + hold(n + 1)) for n in range(8)}
        best = max(rate, key=lambda length: rate[length])
        assert chosen(controller, sure_of(controller, chances), Chain(7)) == [best]
        seen.add(best)
    assert len(seen) > 3, "the best length was always the same, so nothing was tested"


def test_a_batch_drafts_the_length_that_is_best_for_all_unfinished_rows():
    controller = LengthTS(cost=0.1, verify=((1, 1.0), (64, 2.0)))
    chances = np.array([[0.95] * 8, [0.2] * 8, [0.6] * 8, [0.99] * 8])
    state = sure_of(controller, chances)
    for unfinished in ([True] * 4, [True, True, False, False], [False, True, False, False], [False, False, True, True]):
        rows = [row for row, is_open in zip(chances, unfinished, strict=True) if is_open]

        def rate(length, rows=rows):
            return sum(expected(row, length) for row in rows) / (max(length, 1) * 0.1 + (1 if length == 0 else 2))

        best = max(range(9), key=rate)
        assert chosen(controller, state, Chain(8), unfinished) == [best] * 4


def test_what_hardly_pays_is_not_drafted_and_is_tried_again():
    controller = LengthTS(cost=0.3, verify=((1, 1.0), (2, 1.6), (16, 2.0)))

    def one_round(state: LengthState, key: Key[Array, ""]) -> tuple[LengthState, Int[Array, ""]]:
        begun, _ = controller.begin(MODELS, key[None], state, jnp.ones(1, bool), Chain(8))
        return controller.update(begun, round_of([0], begun.length)), begun.length[0]  # all drafts are rejected

    lengths = jax.lax.scan(one_round, controller.init(1), keys_of(400))[1].tolist()
    assert lengths[0] > 0 and lengths.count(0) > 300
    assert any(lengths[200:]), "a row that stopped drafting never tried again"


def test_counts_are_by_position_and_discounted():
    """All cases in one batch, one row each: so rows do not influence each other either."""
    controller = LengthTS()
    cases = [(0, 4), (2, 4), (4, 4), (0, 0), (1, 1), (0, 1)]
    accepted, levels = zip(*cases, strict=True)
    state = controller.update(controller.init(len(cases)), round_of(accepted, levels))
    assert state.accepted[:, :5].tolist() == [[float(i < a) for i in range(5)] for a, _ in cases]
    assert state.rejected[:, :5].tolist() == [[float(i == a < n) for i in range(5)] for a, n in cases]
    again = controller.update(state, round_of(accepted, levels))
    np.testing.assert_allclose(again.accepted, (1 + DISCOUNT) * state.accepted, rtol=1e-6)
    none = round_of([0] * len(cases), [0] * len(cases))
    np.testing.assert_allclose(controller.update(state, none).rejected, DISCOUNT * state.rejected, rtol=1e-6)
    done = controller.update(state, dataclasses.replace(none, committed=jnp.zeros(len(cases), jnp.int32)))
    assert [x.tolist() for x in (done.accepted, done.rejected)] == [
        x.tolist() for x in (state.accepted, state.rejected)
    ]


def test_a_position_begins_where_the_one_before_it_is():
    controller = LengthTS(prior_alpha=2.0, prior_beta=1.0)
    alpha, beta = controller.posterior(controller.init(2))
    assert alpha[0, 0] == 2 and beta[0, 0] == pytest.approx(1)
    np.testing.assert_allclose(alpha[:, 1:], LIKENESS * 2 / 3, rtol=1e-6)
    state = dataclasses.replace(
        controller.init(1), rejected=jnp.zeros((1, LONGEST)).at[0, 1].set(10), accepted=jnp.zeros((1, LONGEST))
    )
    alpha, beta = controller.posterior(state)
    mean = (alpha / (alpha + beta))[0]
    assert mean[0] == pytest.approx(2 / 3) and mean[1] == pytest.approx(LIKENESS * 2 / 3 / (LIKENESS + 10))
    np.testing.assert_allclose(mean[1:], mean[1], rtol=1e-5)


def test_a_tree_costs_the_nodes_that_it_was_seen_to_have():
    """Verifying a level of many nodes costs more, so a tree is drafted less deep than a chain."""
    controller = LengthTS(cost=0.05, verify=((1, 1.0), (8, 1.2), (64, 6.0)))
    tree = Static(paths=tuple((0,) * i + (j,) for i in range(6) for j in range(4)))
    state = sure_of(controller, np.full((1, 6), 0.7))
    deep = chosen(controller, state, tree)
    counts = round_of([3], [6])
    for _ in range(20):
        state = controller.update(state, dataclasses.replace(counts, verified=jnp.array([24]), drafted=jnp.array([24])))
    assert state.density.nodes / state.density.levels == pytest.approx(4, rel=0.1)
    assert chosen(controller, state, tree) < deep == [6]
    # The densest tree of an unfinished row counts, and no finished row's.
    density = Density(nodes=jnp.array([4.0, 1.0, 9.0]), levels=jnp.ones(3))
    for unfinished, nodes in (([True, True, False], 4), ([False, True, False], 1), ([True, True, True], 9)):
        costs = controller.costs_by_length(tree, density, jnp.array(unfinished))
        expected = controller.round_cost(jnp.arange(7), jnp.minimum(1 + jnp.arange(7) * nodes, tree.verified) * 1.0)
        np.testing.assert_allclose(costs[:7], expected, rtol=1e-6)
        assert jnp.isinf(costs[7:]).all()
    idle = dataclasses.replace(round_of([0, 0, 0], [0, 2, 0]), verified=jnp.array([0, 5, 3]))
    later = count_density(density, idle)
    np.testing.assert_allclose(later.levels, [1, DISCOUNT + 2, 1])
    np.testing.assert_allclose(later.nodes, [4, DISCOUNT + 5, 12])


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (3.0, 1.0), (0.3, 2.0), (40.0, 10.0), (0.01, 0.5)])
def test_draws_are_from_the_beta(alpha: float, beta: float):
    number = 100_000
    column = lambda value: jnp.full((number, 1), value)
    found = np.sort(np.asarray(draw_beta(keys_of(number), column(alpha), column(beta)))[:, 0])
    exact = np.sort(np.random.default_rng(0).beta(alpha, beta, 10 * number))
    apart = np.abs(np.searchsorted(exact, found) / len(exact) - (np.arange(number) + 0.5) / number)
    assert apart[found > 1e-12].max() < 0.01  # what is below comes to nothing


def test_draws_are_bound_to_the_row_and_new_in_every_round():
    one, other = (draw_beta(keys_of(3, seed), jnp.full((3, 4), 2.0), jnp.ones((3, 4))) for seed in (0, 1))
    assert len({*np.asarray(one).ravel().tolist(), *np.asarray(other).ravel().tolist()}) == 24


def test_it_stops_at_its_length():
    controller = LengthTS()
    state = dataclasses.replace(controller.init(3), length=jnp.array([1, 2, 3]))
    half = [0.5] * 3
    assert controller.keep_drafting(MODELS, keys_of(3), state, signals(half, half, level=2)).tolist() == [0, 0, 1]


@pytest.fixture(scope="module")
def target() -> Models:
    return models(vocab_size=23)


@pytest.mark.parametrize("name", ["length-ts", "expected-gain"])
def test_rows_of_a_batch_draft_the_same_number_of_levels(name: str, target: Models):
    """No text depends on this number."""
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6], [7], [1, 2]]
    asked = requests(prompts, 30, seed=5, temperature=0.9)
    plain, _ = run(speculation(parse_method("plain"), False), target, asked)
    method = parse_method(f"draft-model+chain,length=6+{name},cost=0.05,verify=1:1/64:1.1")
    texts, history = run(speculation(method, False), target, asked)
    assert texts == plain
    whole = (history.committed > 0).all(axis=0)
    assert (history.levels[:, whole][:, :-4] == history.levels[:1, whole][:, :-4]).all()
    assert len({*history.levels[0, whole].tolist()}) > 1, "the number was always the same, so nothing was tested"


@pytest.mark.parametrize("name", ["length-ts", "expected-gain"])
def test_costs_are_asked_for_and_it_is_coupled(name: str):
    method = parse_method(f"ngram+{name}")
    assert method.needs_costs and parse_method(str(method)) == method
    assert method.builder.depth == 12
    with pytest.raises(ValueError, match=f"{name}: its costs are not measured yet"):
        _ = method.controller.known_costs  # type: ignore[attr-defined]
