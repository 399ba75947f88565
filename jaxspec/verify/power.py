"""Statistical tests of `verify`, corrected for their number, and the deviation that they detect.

Under rejection sampling a text may differ from plain decoding's. Then each of its tokens is a draw from known
probabilities: the target's, given the text before it. Sort the vocabulary by these probabilities, the likeliest token
first. A token's *place* is the probability of all tokens before it, plus a random share of its own. If the method is
lossless, places are uniform on [0, 1] and independent of each other, for all prompts and temperatures. So all tokens of
a run are one sample of one known distribution. Pearson's chi-square test compares the numbers of places per tenth with
it.

A method with another distribution moves probability between tenths. Let d be the total variation distance that is
moved, on average over the texts. By the Cauchy-Schwarz inequality, the noncentrality of the statistic for n tokens is
at least 4 n d². This gives the number of tokens that are needed to detect a deviation.
"""

from collections.abc import Mapping, Sequence
from math import ceil, sqrt

import numpy as np
from scipy import optimize, stats

ALPHA = 0.01  # probability that any of the tests rejects a lossless library
POWER = 0.99
DEVIATION = 0.01  # total variation that the tests must detect with this power
TENTHS = 10
FEWEST = 50  # fewest places for which the chi-square distribution is a good approximation


def chi_square(counts: Sequence[int]) -> float | None:
    """p-value of the hypothesis that places are uniform, from the counts in each tenth; None below `FEWEST` places."""
    if sum(counts) < FEWEST:
        return None
    return float(stats.chisquare(np.asarray(counts, float)).pvalue)


def more_often(ours: int, our_tokens: int, theirs: int, their_tokens: int) -> float | None:
    """One-sided p-value of the hypothesis that near-ties flip no more often in our tokens than in theirs.

    Given the total number of flips, the number among ours is binomial. None without tokens.
    """
    if not (our_tokens and their_tokens):
        return None
    return float(stats.binom.sf(ours - 1, ours + theirs, our_tokens / (our_tokens + their_tokens)))


def rejected(p_values: Mapping[str, float], alpha: float = ALPHA) -> set[str]:
    """The hypotheses that Holm's method rejects. The probability that any of them is true is at most `alpha`."""
    found = set[str]()
    for at, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > alpha / (len(p_values) - at):
            break
        found.add(name)
    return found


def tokens_needed(tests: int, deviation: float = DEVIATION) -> int:
    """Number of tokens with which a method's test detects this total variation, corrected for the number of tests."""
    return ceil(_noncentrality(tests) / (4 * deviation**2))


def found_deviation(tokens: int, tests: int) -> float:
    """The smallest total variation that a test with this many tokens detects; at most 1."""
    return min(1.0, sqrt(_noncentrality(tests) / (4 * tokens))) if tokens else 1.0


def _noncentrality(tests: int) -> float:
    """The noncentrality with which a chi-square test at Holm's strictest level has the power `POWER`."""
    freedom = TENTHS - 1
    critical = stats.chi2.isf(ALPHA / max(tests, 1), freedom)
    missed = lambda size: stats.ncx2.sf(critical, freedom, size) - POWER
    return optimize.root_scalar(missed, bracket=(1e-3, 1e4)).root
