"""Uncertainty of results: bootstrap intervals over questions, and a paired test of two methods or runs."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate.runlog import Answer

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0  # fixed, so that every method gets the same resampled questions
Interval = list[float]  # [low, high]


@dataclasses.dataclass(frozen=True)
class RatioOfSums:
    """A ratio of sums over questions, such as Σ tokens / Σ seconds, or of products of such sums, one per column."""

    over: Float[np.ndarray, "questions factors"]
    under: Float[np.ndarray, "questions factors"]

    def __truediv__(self, other: "RatioOfSums") -> "RatioOfSums":
        """The ratio of two ratios over the same questions, such as a speedup from two speeds."""
        return RatioOfSums(np.hstack([self.over, other.under]), np.hstack([self.under, other.over]))

    @property
    def value(self) -> float:
        return float(self._of_sums(*self.over.T, *self.under.T, axis=0))

    def interval(self) -> Interval | None:
        """95 % percentile bootstrap interval, which resamples questions; None for fewer than two questions."""
        if len(self.over) < 2:
            return None
        found = stats.bootstrap(
            (*self.over.T, *self.under.T),
            self._of_sums,
            paired=True,
            vectorized=True,
            method="percentile",
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            rng=SEED,
        )
        return [float(end) for end in found.confidence_interval]

    def p_value(self) -> float | None:
        """p-value of Wilcoxon's signed-rank test that the questions' log ratios are symmetric around 0: for n questions
        at least 2 / 2^n; None for fewer than two."""
        over, under = self.over.prod(axis=1), self.under.prod(axis=1)
        whole: Bool[np.ndarray, " questions"] = (over > 0) & (under > 0)
        logs = np.round(np.log(over[whole]) - np.log(under[whole]), 12)  # without differences by rounding
        if len(logs) < 2:
            return None
        if not logs.any():
            return 1.0
        found: Any = stats.wilcoxon(logs)  # a named tuple, which its annotation lacks
        return float(found.pvalue)

    def _of_sums(self, *columns: np.ndarray, axis: int) -> np.ndarray:
        """The ratio for columns of resampled questions; 0 if the denominator is 0."""
        sums = [column.sum(axis=axis) for column in columns]
        factors = self.over.shape[1]
        above, below = np.prod(sums[:factors], axis=0), np.prod(sums[factors:], axis=0)
        return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def in_words(interval: Interval | None, p_value: float | None, less: str, more: str) -> str:
    """A ratio's interval and test in a few words: `3–8 % slower`, `3.1–3.3 % slower` or `3 % slower`.

    A difference needs p < 0.05 and an interval without 1.
    """
    if interval is None or p_value is None:
        return "–"
    low, high = interval
    if p_value >= 1 - CONFIDENCE or low <= 1 <= high:
        return "the same" if abs(low - 1) + abs(high - 1) < 1e-9 else "unclear"
    ends = sorted(abs(100 * (end - 1)) for end in interval)
    whole, tenths = ([format(end, form) for end in ends] for form in (".0f", ".1f"))
    span = next(("–".join(each) for each in (whole, tenths) if each[0] != each[1]), whole[0])
    return f"{span} % {less if high < 1 else more}"


def brackets(interval: Interval | None) -> str:
    """The interval as text: `[1.38, 1.47]`."""
    return "–" if interval is None else f"[{', '.join(format(end, '.2f') for end in interval)}]"


def p_in_words(p_value: float | None) -> str:
    """The p-value as text: `.012`, or `<.001`."""
    if p_value is None:
        return "–"
    return "<.001" if p_value < 0.001 else format(p_value, ".3f").removeprefix("0")


@dataclasses.dataclass(frozen=True)
class PerQuestion:
    """Counts and seconds of decoding for each question, summed over its turns, and the number of its batch."""

    tokens: Float[np.ndarray, " questions"]
    rounds: Float[np.ndarray, " questions"]
    seconds: Float[np.ndarray, " questions"]
    batch: Int[np.ndarray, " questions"]

    def take(self, at: Int[np.ndarray, " taken"]) -> "PerQuestion":
        return PerQuestion(**{field.name: getattr(self, field.name)[at] for field in dataclasses.fields(self)})

    @property
    def tau(self) -> RatioOfSums:
        return RatioOfSums(self.tokens[:, None], self.rounds[:, None])

    def speed(self, batch: Int[np.ndarray, " questions"] | None = None) -> RatioOfSums:
        """Tokens per second. Questions of one `batch` (None: this run's) share its time and are resampled as one."""
        _, at = np.unique(self.batch if batch is None else batch, return_inverse=True)
        return RatioOfSums(*(np.bincount(at, values)[:, None] for values in (self.tokens, self.seconds)))


def per_question(answers: Sequence[Answer]) -> PerQuestion:
    counts = [statistics_of([turn.history for turn in answer.turns]) for answer in answers]
    return PerQuestion(
        tokens=np.array([each.tokens for each in counts], float),
        rounds=np.array([each.rounds for each in counts], float),
        seconds=seconds_of(answers, "decode_seconds"),
        batch=np.array([answer.batch for answer in answers], int),
    )


def seconds_of(answers: Sequence[Answer], key: str) -> Float[np.ndarray, " questions"]:
    """Seconds of each of a method's answers, medians over the repeats; the rows of a batch share its time evenly."""
    rows = Counter((answer.batch, turn) for answer in answers for turn in range(len(answer.turns)))
    of_turn = lambda turn, share: statistics.median(getattr(turn, key)) / share
    return np.array([sum(of_turn(turn, rows[a.batch, i]) for i, turn in enumerate(a.turns)) for a in answers], float)
