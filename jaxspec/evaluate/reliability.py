"""Calibration of the drafts' confidence in a single token, not in the path to it (EDD, Figure 3b): a reliability table
and the expected calibration error. A draft counts if its parent was accepted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.engine.statistics import ratio

BINS = 10
"""Number of bins. They have equal width, and include the upper edge only (Guo et al., arXiv:1706.04599, section 2)."""


def tally(trees: Iterable[Mapping[str, Sequence]]) -> list[list[float]]:
    """Counts the drafts of rounds: [BINS][3], in each bin (drafts, sum of confidences, accepted drafts).

    Args:
        trees: the trees of rounds, from `runlog.tree_to_json`.
    """
    found = np.zeros((BINS, 3))
    for tree in trees:
        confidence, accepted = judged(tree)
        rank = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        np.add.at(found, rank, np.stack([np.ones_like(confidence), confidence, accepted], axis=1))
    return found.tolist()


def judged(tree: Mapping[str, Sequence]) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and verdicts of the drafts on which the target decided: [drafts] float and [drafts] bool.

    The confidence of a node is exp(its log_confidence - its parent's). It is the drafter's probability of the token
    after temperature; for sampled drafts also after top-k and top-p. If a text ends inside the accepted path, by EOS or
    budget, deeper nodes have no verdict.
    """
    parent, accepted = np.array(tree["parent"], int), np.array(tree["accepted"], bool)
    path = np.array(tree["log_confidence"], float)
    depth = np.zeros(len(parent), int)
    for node in range(1, len(parent)):  # parents precede their children
        depth[node] = depth[parent[node]] + 1
    known = np.flatnonzero((parent >= 0) & accepted[parent] & (depth <= len(tree["committed"])))
    return np.minimum(np.exp(path[known] - path[parent[known]]), 1.0), accepted[known]


def add(tallies: Iterable[list[list[float]]]) -> np.ndarray:
    """The sum of several tallies: [BINS, 3]. Empty tallies are ignored."""
    return sum((np.array(each) for each in tallies if each), np.zeros((BINS, 3)))


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
