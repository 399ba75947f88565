"""The statistics of `jaxspec verify` have their stated levels and power, and exact probabilities."""

from itertools import islice, pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxspec.decoding.request import SamplingParams
from jaxspec.decoding.sampling import Sampling, probabilities
from jaxspec.verify import verdict, workloads
from jaxspec.verify.cases import Case, Result, joined, parse_cases
from jaxspec.verify.exact import kept, place
from jaxspec.verify.schedule import in_order
from jaxspec.verify.workloads import KINDS, Source

SOURCE = Source(vocab_size=50, room=200, texts=(tuple(range(40)), (3, 4)), words="def f(x):\n    return x\n")


@pytest.mark.parametrize("tests", [1, 12])
def test_a_deviation_is_found_with_the_power_stated(tests: int) -> None:
    """By simulation of what is hardest to find: a total variation spread evenly over the tenths."""
    deviation, draw = 0.05, np.random.default_rng(0)
    tokens = verdict.tokens_needed(tests, deviation)
    shifted = 0.1 + deviation * np.repeat([0.2, -0.2], 5)
    found = [verdict.chi_square(draw.multinomial(tokens, shifted).tolist()) for _ in range(2000)]
    assert np.mean([p is not None and p <= verdict.ALPHA / tests for p in found]) == pytest.approx(0.99, abs=0.01)
    assert verdict.found_deviation(tokens, tests) == pytest.approx(deviation, rel=1e-3)


def test_false_alarms_are_as_rare_as_stated() -> None:
    draw = np.random.default_rng(0)
    runs = [
        {str(i): verdict.chi_square(draw.multinomial(2000, np.full(10, 0.1)).tolist()) or 0.0 for i in range(10)}
        for _ in range(400)
    ]
    assert sum(bool(verdict.rejected(run)) for run in runs) <= stats.binom.isf(1e-4, 400, verdict.ALPHA)


def test_holm() -> None:
    assert verdict.rejected({"a": 0.002, "b": 0.004, "c": 0.02}) == {"a", "b"}
    assert verdict.rejected({"a": 0.004, "b": 0.004, "c": 0.02}) == set()
    assert verdict.rejected({}) == set()


def test_too_few_tokens_say_nothing() -> None:
    assert verdict.chi_square([4] * 10) is None and verdict.chi_square([]) is None
    assert verdict.more_often(1, 100, 0, 0) is None


def test_near_ties_more_often_than_plain_decodings() -> None:
    p = verdict.more_often(20, 10_000, 5, 10_000)
    assert p == pytest.approx(stats.binomtest(20, 25, alternative="greater").pvalue)
    assert verdict.more_often(0, 10_000, 5, 10_000) == pytest.approx(1.0)


@pytest.mark.parametrize("how", [(1.0, 0, 1.0), (0.5, 7, 1.0), (1.5, 0, 0.6), (0.8, 9, 0.7), (1.0, 60, 0.3)])
def test_probabilities_are_the_librarys(how: tuple[float, int, float]) -> None:
    temperature, top_k, top_p = how
    logits = np.random.default_rng(1).normal(scale=2, size=(20, 50)).astype(np.float32)
    logits[3:6] = np.round(logits[3:6])  # ties
    sampling = Sampling(temperature=jnp.array([temperature]), top_k=jnp.array([top_k]), top_p=jnp.array([top_p]))
    theirs = np.asarray(probabilities(jnp.asarray(logits)[None], sampling))[0]
    asked = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    for row, expected in zip(logits, theirs, strict=True):
        found = kept(row, asked, 0.01)
        np.testing.assert_allclose(found.probability, expected, atol=1e-6)
        assert (found.surely <= (found.probability > 0)).all() and ((found.probability > 0) <= found.maybe).all()


def test_what_noise_can_cut_off_is_kept_maybe_but_not_surely() -> None:
    logits = np.array([3.0, 2.0, 1.999, 0.0], np.float32)
    found = kept(logits, SamplingParams(temperature=1.0, top_k=2), 0.01)
    assert found.surely.tolist() == [True, False, False, False]
    assert found.maybe.tolist() == [True, True, True, False]
    assert (found.probability > 0).tolist() == [True, True, False, False]
    found = kept(logits, SamplingParams(temperature=1.0, top_k=2), 1e-5)
    assert found.surely.tolist() == found.maybe.tolist() == [True, True, False, False]


def test_places_of_draws_are_uniform_and_of_others_are_not() -> None:
    draw, counts, wrong = np.random.default_rng(2), np.zeros(10, int), np.zeros(10, int)
    for _ in range(4000):
        probability = draw.dirichlet(np.full(6, 0.7))
        flatter = np.sqrt(probability) / np.sqrt(probability).sum()  # twice the temperature
        for tenths, q in ((counts, probability), (wrong, flatter)):
            tenths[int(10 * place(probability, int(draw.choice(6, p=q)), draw.random()))] += 1
    right = verdict.chi_square(counts.tolist())
    assert right is not None and right > 0.001
    assert verdict.chi_square(wrong.tolist()) == pytest.approx(0, abs=1e-9)


def test_places_part_the_whole() -> None:
    probability = np.array([0.2, 0.5, 0.0, 0.2, 0.1])
    ends = [(place(probability, token, 0.0), place(probability, token, 1.0)) for token in (1, 0, 3, 4)]
    assert ends[0][0] == 0 and ends[-1][1] == pytest.approx(1)
    assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(ends))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "sampled" else pytest.mark.soak) for kind in KINDS]
)
def test_a_workload_is_determined_by_seed_kind_and_number(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = SOURCE.workload(1, kind, 6), SOURCE.workload(1, kind, 6)
    assert first == again != SOURCE.workload(2, kind, 6)
    assert len(first.requests) > len(SOURCE.workload(1, kind, 0).requests), "first checks are short"
    monkeypatch.setattr(workloads, "LATER_PROMPTS", dict.fromkeys(KINDS, 12))
    drawn = [SOURCE.workload(seed, kind, number) for seed in range(4) for number in range(0, 60, 4)]
    for workload in drawn:
        for request in workload.requests:
            assert request.tokens and len(request.tokens) + request.sampling.max_new_tokens <= 200
            assert (request.sampling.temperature > 0) >= (kind == "distribution")
            assert kind != "greedy" or request.sampling.temperature == 0
        assert len(workload.requests) > workload.batch_size, "rows are refilled"
    if kind != "distribution":
        assert {workload.batch_size for workload in drawn} == set(range(1, 9))
        assert any(workload.stops for workload in drawn) and not all(workload.stops for workload in drawn)
        full = [r for w in drawn for r in w.requests if len(r.tokens) + r.sampling.max_new_tokens == 200]
        assert full, "some text goes on to the last position"


def test_cases_by_name() -> None:
    cases = parse_cases("draft-model@a/b+chain/greedy/0-2,7")
    assert cases == [Case("draft-model@a/b+chain", "greedy", number) for number in (0, 1, 2, 7)]
    assert joined(cases) == "draft-model@a/b+chain/greedy/0-2,7"
    assert parse_cases(str(cases[-1])) == cases[-1:]


def test_the_order_checks_every_method_first_and_then_what_has_too_few_tokens() -> None:
    names = ("plain", "ngram+static", "ngram+chain", "ngram+eagle2")  # the last is not among the first three
    done: dict[Case, Result] = {}
    found = []
    for case in in_order(names, 3, done, exact=True):
        done[case] = Result(case, tokens=60_000 if case.method == "plain" else 50_000)
        found.append(case)
        if len(found) == 16:
            break
    kinds = [(names.index(case.method), case.kind[0], case.number) for case in found]
    assert kinds[:7] == [(0, "g", 0), (0, "s", 0), (0, "d", 0), (1, "g", 0), (1, "s", 0), (2, "g", 0), (2, "d", 0)]
    more = [(2, "d", 1), (3, "g", 1), (3, "s", 1), (0, "d", 1), (0, "g", 1), (0, "s", 1), (0, "d", 1), (2, "d", 2)]
    assert kinds[7:] == [*more, (1, "g", 1)]


def test_plain_decoding_has_further_cases_where_near_ties_are_tested() -> None:
    names = ("plain", *(f"ngram+chain,length={length}" for length in range(2, 26)))
    found = list(islice(in_order(names, 2, {}, exact=False, kinds_of=lambda method: ("greedy",)), 34))
    assert [case.number for case in found if case.method == "plain"] == [0, 0, 1, 2, 3, 12]
