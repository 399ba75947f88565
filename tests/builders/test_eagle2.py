"""EAGLE-2's tree against its definition in plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.eagle2 import Eagle2
from tests.builders.tables import Paths, children, confidence, grown, paths_of, prune, tables

SHAPES = [(2, 1, 1), (5, 4, 1), (6, 3, 2), (12, 4, 3), (12, 2, 4)]  # few, for each compiles its own programs


def brute(table: np.ndarray, total: int, depth: int, width: int) -> Paths:
    """Expand the most confident of each level, keep the most confident of all."""
    ranked = lambda paths: sorted(paths, key=lambda path: (-confidence(table, path), len(path)))
    found, level = [], [()]
    for _ in range(depth):
        level = [child for path in level for child in children(table, path, width)]
        found += level
        level = ranked(level)[:width]
    return {path: confidence(table, path) for path in ranked(found)[: total - 1]}


@given(tables(), st.sampled_from(SHAPES))
def test_it_equals_its_definition(table, shape):
    total, depth, width = shape
    builder = Eagle2(total=total, depth=depth, width=width)
    kept = prune(builder, grown(builder, table))
    assert kept.token.shape[1] == builder.verified
    found, expected = paths_of(kept), brute(table, total, depth, width)
    np.testing.assert_allclose(sorted(found.values()), sorted(expected.values()), atol=1e-5)
    if len({round(value, 4) for value in expected.values()}) == len(expected):  # without ties the very same nodes
        assert found.keys() == expected.keys()
