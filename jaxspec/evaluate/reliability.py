"""Calibration of the drafts' confidence in a single token, not in the path to it (EDD, Figure 3b): a reliability table
and the expected calibration error. A draft counts if its parent was accepted.

For a confidence head also the temperatures of its levels (DSpark, arXiv:2607.05147: sequential temperature scaling).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.engine.generation import Round
from jaxspec.engine.statistics import ratio

BINS = 10  # of equal width, which include the upper edge only (Guo et al., arXiv:1706.04599, section 2)


def tally(trees: Iterable[Mapping[str, Sequence]]) -> list[list[float]]:
    """Counts the drafts of rounds, as `in_bins`. `trees` are from `runlog.tree_to_json`."""
    return add(in_bins(*judged(tree)) for tree in trees).tolist()


def in_bins(confidence: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """Counts drafts: [BINS, 3], in each bin (drafts, sum of confidences, accepted drafts)."""
    rank = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return np.stack([np.bincount(rank, each, BINS) for each in (np.ones(len(rank)), confidence, accepted)], axis=1)


def judged(tree: Mapping[str, Sequence]) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and verdicts of the drafts on which the target decided: [drafts] float and [drafts] bool.

    The confidence of a node is exp(its log_confidence - its parent's): the drafter's probability of the token after
    temperature, for sampled drafts also after top-k and top-p. Nodes beyond the end of a text have no verdict.
    """
    parent, accepted = np.array(tree["parent"], int), np.array(tree["accepted"], bool)
    path = np.array(tree["log_confidence"], float)
    depth = np.zeros(len(parent), int)
    for node in range(1, len(parent)):  # parents precede their children
        depth[node] = depth[parent[node]] + 1
    known = np.flatnonzero((parent >= 0) & accepted[parent] & (depth <= len(tree["committed"])))
    return np.minimum(np.exp(path[known] - path[parent[known]]), 1.0), accepted[known]


def add(tallies: Iterable[list[list[float]] | np.ndarray]) -> np.ndarray:
    """The sum of several tallies: [BINS, 3]. Empty tallies are ignored."""
    return sum((np.array(each) for each in tallies if len(each)), np.zeros((BINS, 3)))


def table(counts: np.ndarray) -> list[dict[str, Any]]:
    """One row per bin, the least confident first: mean confidence, share accepted (None without drafts), `count`."""
    return [
        {
            "confidence": confidence / count if count else None,
            "accepted": accepted / count if count else None,
            "count": int(count),
        }
        for count, confidence, accepted in counts.tolist()
    ]


def expected_calibration_error(counts: np.ndarray) -> float | None:
    """Mean over drafts of |share accepted - mean confidence| in their bin (Guo et al., Eq. 3); None without drafts."""
    drafts, confidence, accepted = counts.T
    return ratio(float(np.abs(accepted - confidence).sum()), float(drafts.sum())) if drafts.any() else None


GRID = np.geomspace(0.2, 5.0, 65)  # temperatures that are tried


def temperatures(rounds: Iterable[Round], levels: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Fits the divisor of a confidence head's log-odds at each level, from `rounds` of chains without temperatures.

    Each minimises the expected calibration error of the product of the estimates up to its level: the probability that
    all drafts so far are accepted. Returns `levels` temperatures, and each level's errors before and after.
    """
    rows = [row for each in rounds if (row := _chain(each, levels)) is not None]
    if not rows:
        raise ValueError("no round drafted all levels, so the confidence head cannot be calibrated; use more questions")
    odds, accepted = np.array([odds for odds, _ in rows]), np.array([count for _, count in rows])
    before, after, found, errors = np.ones(len(rows)), np.ones(len(rows)), list[float](), list[tuple[float, float]]()
    error = lambda chance, accepted: expected_calibration_error(in_bins(chance, accepted)) or 0.0
    for level in range(levels):
        chance = 1 / (1 + np.exp(-odds[:, level, None] / GRID))
        errors_of = [error(after * column, accepted > level) for column in chance.T]
        best = int(np.argmin(errors_of))
        before *= 1 / (1 + np.exp(-odds[:, level]))
        after *= chance[:, best]
        found.append(round(float(GRID[best]), 4))
        errors.append((error(before, accepted > level), errors_of[best]))
    return found, errors


def _chain(chain: Round, levels: int) -> tuple[np.ndarray, int] | None:
    """The log-odds of a chain's drafts, and how many were accepted; None if it is shorter or the text ended in it."""
    accepted = int(chain.accepted.sum()) - 1
    if len(chain.parent) != levels + 1 or len(chain.committed) <= accepted:
        return None
    chance = np.clip(np.exp(np.diff(chain.log_confidence.astype(float))), 1e-6, 1 - 1e-6)
    return np.log(chance) - np.log1p(-chance), accepted
