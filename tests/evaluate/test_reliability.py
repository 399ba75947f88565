"""Confidence against acceptance: which drafts count, by hand, and what must hold of every tree."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.engine.generation import Round
from jaxspec.evaluate.reliability import BINS, add, expected_calibration_error, judged, table, tally, temperatures


def tree(parent: list[int], confidence: list[float], accepted: list[int], committed: int) -> dict[str, Any]:
    """A round as the log has it; `confidence` is each node's own, and the root's 1."""
    log = [0.0] * len(parent)
    for node in range(1, len(parent)):
        log[node] = log[parent[node]] + math.log(confidence[node])
    return {
        "token": parent,
        "parent": parent,
        "log_confidence": log,
        "accepted": [int(node in accepted) for node in range(len(parent))],
        "committed": [0] * committed,
    }


#        0
#      1   2      1, 4 are accepted; 5 hangs under a rejected node
#    3   4   5
#          6
PARENT, OWN = [-1, 0, 0, 1, 1, 2, 4], [1, 0.6, 0.3, 0.05, 0.92, 1.0, 0.5]
TREE = tree(PARENT, OWN, [0, 1, 4], committed=3)


def test_drafts_with_an_accepted_parent_are_judged():
    confidence, accepted = judged(TREE)
    assert confidence.tolist() == pytest.approx([0.6, 0.3, 0.05, 0.92, 0.5])
    assert accepted.tolist() == [True, False, False, True, False]


def test_where_the_text_ends_there_is_no_verdict():
    """The last token fitted is node 4: nobody knows whether 6 would have been accepted."""
    assert judged(tree(PARENT, OWN, [0, 1, 4], committed=2))[0].tolist() == pytest.approx([0.6, 0.3, 0.05, 0.92])
    assert judged(tree(PARENT, OWN, [0, 1], committed=1))[0].tolist() == pytest.approx([0.6, 0.3])


def test_a_table_by_hand():
    sure = tree([-1, 0], [1, 1.0], [0, 1], committed=2)  # in the last bin, with 0.92
    unsure = tree([-1, 0], [1, 0.9], [0], committed=1)  # an upper edge: the bin below
    counts = add([tally([TREE, sure]), [], tally([unsure])])
    rows = table(counts)
    assert [row["count"] for row in rows] == [1, 0, 1, 0, 1, 1, 0, 0, 1, 2]
    assert rows[9] == {"confidence": pytest.approx(0.96), "accepted": 1.0, "count": 2}
    assert rows[8] == {"confidence": pytest.approx(0.9), "accepted": 0.0, "count": 1}
    assert rows[1] == {"confidence": None, "accepted": None, "count": 0}
    gaps = 0.05 + 0.3 + 0.5 + (1 - 0.6) + 0.9 + 2 * (1 - 0.96)
    assert expected_calibration_error(counts) == pytest.approx(gaps / 7)


def test_nothing_drafted():
    empty = tree([-1], [1], [0], committed=1)
    assert tally([empty]) == tally([]) == [[0, 0, 0]] * BINS
    assert expected_calibration_error(add([tally([empty])])) is None


@st.composite
def rounds(draw: st.DrawFn) -> dict[str, Any]:
    """A random tree with a random path accepted, whole or cut."""
    size = draw(st.integers(1, 12))
    parent = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    confidence = [1.0] + [draw(st.floats(1e-6, 1)) for _ in range(1, size)]
    path = [draw(st.integers(0, size - 1))]
    while path[-1]:
        path.append(parent[path[-1]])
    return tree(parent, confidence, path, committed=len(path) - draw(st.integers(0, 1)))


@given(st.lists(rounds(), max_size=6))
def test_what_must_hold_of_every_tree(trees: list[dict[str, Any]]):
    counts = add([tally(trees)])
    np.testing.assert_allclose(counts, add(tally([each]) for each in trees), atol=1e-9)  # round by round, the same
    rows = table(counts)
    accepted = sum(sum(each["accepted"]) - 1 for each in trees)
    children = sum(each["accepted"][p] for each in trees for p in each["parent"][1:])
    assert sum(row["count"] * (row["accepted"] or 0) for row in rows) == pytest.approx(accepted)
    assert accepted <= sum(row["count"] for row in rows) <= children
    for at, row in enumerate(rows):
        if row["count"]:
            assert at / BINS - 1e-6 <= row["confidence"] <= (at + 1) / BINS + 1e-6
            assert 0 <= row["accepted"] <= 1
    error = expected_calibration_error(counts)
    assert (error is None) == (not sum(row["count"] for row in rows))
    assert error is None or 0 <= error <= 1


def chain(confidence: Sequence[float] | np.ndarray, accepted: int, committed: int) -> Round:
    """A round of a chain whose first `accepted` drafts were accepted."""
    nodes = np.arange(len(confidence) + 1)
    log = np.log(np.cumprod([1.0, *confidence]))
    return Round(nodes, nodes - 1, log_confidence=log, accepted=nodes <= accepted, committed=[0] * committed)


def test_temperatures_undo_a_scaling_of_the_odds():
    """Chains whose drafts are accepted by their true chance, of which the head reports the odds times 2, then 0.5."""
    rng, rounds = np.random.default_rng(0), []
    for _ in range(20_000):
        odds = rng.normal(1, 1.5, 2)
        accepted = int(np.cumprod(rng.random(2) < 1 / (1 + np.exp(-odds))).sum())
        reported = 1 / (1 + np.exp(-odds * np.array([2.0, 0.5])))
        rounds.append(chain(reported, accepted, committed=accepted + 1))
    cut = chain([0.5, 0.5], accepted=1, committed=1)  # the text ended inside the accepted path
    found, errors = temperatures([*rounds, cut, chain([0.5], accepted=0, committed=1)], 2)
    assert found == pytest.approx([2.0, 0.5], rel=0.12)
    assert all(after < 0.015 < before for before, after in errors)
    with pytest.raises(ValueError, match="no round drafted all levels"):
        temperatures([cut], 2)
