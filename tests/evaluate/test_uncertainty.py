"""Intervals and paired tests against numbers by hand, and against all resamples there are."""

import itertools

import numpy as np
import pytest

from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.evaluate.uncertainty import RatioOfSums, brackets, in_words, p_in_words, per_question


def ratio(over: list[float], under: list[float]) -> RatioOfSums:
    return RatioOfSums(np.array(over)[:, None], np.array(under)[:, None])


def test_of_two_questions_either_may_be_drawn_twice():
    """Each twice with a chance of 1/4, which is more than 2.5 %: the ends are 8/4 and 9/3, and the ratio is 17/7."""
    found = ratio([8.0, 9.0], [4.0, 3.0])
    assert found.value == 17 / 7
    assert found.interval() == [2.0, 3.0]


def test_the_interval_is_that_of_all_resamples():
    """Of five questions there are 3125 ordered draws, all as likely."""
    over, under = np.array([3.0, 5.0, 8.0, 2.0, 9.0]), np.array([2.0, 2.0, 3.0, 2.0, 2.5])
    drawn = [list(draw) for draw in itertools.product(range(5), repeat=5)]
    exact = np.quantile([over[draw].sum() / under[draw].sum() for draw in drawn], [0.025, 0.975])
    found = ratio(over.tolist(), under.tolist())
    assert found.interval() == pytest.approx(exact, abs=0.05)
    assert found.interval() == found.interval()  # the same draws every time


@pytest.mark.parametrize(("questions", "share"), [(8, 0.88), (20, 0.93), (40, 0.94)])
def test_how_often_intervals_hold_the_true_speedup(questions: int, share: float):
    """Questions of 63 tokens, whose tau varies by a fifth; times of a round and of a token by a twentieth."""
    rng = np.random.default_rng(0)

    def speedup(questions: int) -> RatioOfSums:
        rounds = 63 / (2.7 * np.exp(rng.normal(0, 0.2, questions)))
        ours, plain = (count * np.exp(rng.normal(0, 0.05, questions)) for count in (1.8 * rounds, 63.0))
        return RatioOfSums(plain[:, None], ours[:, None])

    truth = speedup(10**6).value
    found = [speedup(questions).interval() or (0, 0) for _ in range(300)]
    assert np.mean([low <= truth <= high for low, high in found]) == pytest.approx(share, abs=0.04)


def test_resampling_is_paired():
    """Questions of very different length; the method takes half of plain's seconds in each of them."""
    tokens, plain = [10.0, 1000.0, 50.0], [1.0, 300.0, 2.0]
    speedup = ratio(tokens, [s / 2 for s in plain]) / ratio(tokens, plain)
    assert speedup.value == pytest.approx(2)
    assert speedup.interval() == pytest.approx([2, 2])
    low, high = ratio(tokens, plain).interval() or (0, 0)
    assert (low, high) == pytest.approx((1000 / 300, 50 / 2))  # while the speeds themselves are far apart


def test_one_question_has_no_interval():
    assert ratio([3.0], [1.0]).interval() is None
    assert ratio([3.0], [1.0]).p_value() is None


def test_questions_without_tokens():
    """A budget of one token, which prefill gives: no rounds and no seconds."""
    assert ratio([0.0, 0.0], [0.0, 0.0]).value == 0
    assert ratio([0.0, 0.0], [0.0, 0.0]).interval() == [0, 0]
    assert ratio([0.0, 0.0], [0.0, 0.0]).p_value() is None


@pytest.mark.parametrize(
    ("over", "p_value"),
    [
        ([1.1, 1.2, 1.3, 1.4, 1.5], 2 / 32),  # all above 1: two of 2^5 assignments of signs
        ([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], 2 / 64),
        ([0.9, 1.2, 1.3, 1.4, 1.5, 1.6], 4 / 64),  # the smallest the other way: ranks sum to 20 and 1
        ([1.0, 1.0, 1.0], 1.0),
        ([1.0 + 1e-15, 1.0 + 1e-15, 1.0 + 1e-15, 1.0, 1.0, 1.0, 1.0], 1.0),  # as floats are rounded
    ],
)
def test_the_signed_rank_test(over: list[float], p_value: float):
    assert ratio(over, [1.0] * len(over)).p_value() == pytest.approx(p_value)
    assert ratio([1.0] * len(over), over).p_value() == pytest.approx(p_value)


@pytest.mark.parametrize(
    ("interval", "p_value", "says"),
    [
        ([0.92, 0.97], 0.001, "3–8 % slower"),
        ([1.02, 1.101], 0.001, "2–10 % faster"),
        ([1.021, 1.024], 0.001, "2.1–2.4 % faster"),
        ([1.25, 1.25], 0.001, "25 % faster"),
        ([0.92, 0.97], 0.06, "unclear"),
        ([0.92, 1.01], 0.01, "unclear"),
        ([1.0, 1.0 + 1e-15], 1.0, "the same"),
        (None, None, "–"),
    ],
)
def test_a_verdict_in_words(interval: list[float] | None, p_value: float | None, says: str):
    assert in_words(interval, p_value, "slower", "faster") == says


def test_numbers_as_they_are_printed():
    assert [brackets([1.384, 1.466]), brackets(None)] == ["[1.38, 1.47]", "–"]
    assert [p_in_words(p) for p in (0.0004, 0.0314, 1.0, None)] == ["<.001", ".031", "1.000", "–"]


def answer(question: int, batch: int, *turns: tuple[list[int], list[float]]) -> Answer:
    """Turns of (tokens of each round, seconds of each repeat)."""
    made = [Turn([1], [2], "", [[n, n - 1, 4, 4, 4, n] for n in rounds], None, [], times) for rounds, times in turns]
    return Answer(question, None, None, "m", batch, made)


def test_numbers_of_each_question():
    """Two in a batch, of which the first has a second turn alone, and one by itself; medians over three repeats."""
    found = per_question(
        [
            answer(0, 0, ([3, 1], [4.0, 2.0, 9.0]), ([5], [1.0, 1.0, 7.0])),
            answer(1, 0, ([2], [4.0, 2.0, 9.0])),
            answer(2, 1, ([4, 4, 2], [3.0, 3.0, 1.0])),
        ]
    )
    assert found.tokens.tolist() == [9, 2, 10]
    assert found.rounds.tolist() == [3, 1, 3]
    assert found.seconds.tolist() == [4 / 2 + 1, 4 / 2, 3]
    assert found.tau.value == 21 / 7
    assert found.tau.over.shape == (3, 1)
    speed = found.speed(found.batch)
    assert (speed.over[:, 0].tolist(), speed.under[:, 0].tolist()) == ([11, 10], [5, 3])  # rows of a batch as one
    assert found.take(np.array([2, 0])).tokens.tolist() == [10, 9]
