"""CAPE: the width of each level, and the parent of its nodes."""

import numpy as np

from jaxspec.builders.cape import Cape
from tests.builders.tables import grown, paths_of

VOCAB = 10


def surest(token: int, top: float) -> list[float]:
    """A distribution whose largest probability is that of `token`; the rest fall off slowly, in order."""
    rest = np.linspace(1.5, 1.0, VOCAB - 1)
    probs = np.insert((1 - top) * rest / rest.sum(), token, top)
    assert probs.argmax() == token
    return probs.tolist()


TABLE = [surest(t + 1, top) for t, top in enumerate((0.25, 0.5, 0.7, 0.9, 0.31))] + [surest(0, 0.2)] * 5


def test_a_tree_worked_out_by_hand():
    """Down the path 1, 2, 3, 4, 5: 7 children, then 5, 3, 1 and 5."""
    found = paths_of(grown(Cape(), TABLE))
    by_level = [sorted(path for path in found if len(path) == level) for level in range(1, 6)]
    assert [len(level) for level in by_level] == [7, 5, 3, 1, 5]
    assert all({path[:-1] for path in level} == {(1, 2, 3, 4)[: len(level[0]) - 1]} for level in by_level)
    assert {path[-1] for path in by_level[2]} == {3, 0, 1}  # the top three after token 2


def test_rows_do_not_see_each_other():
    together = grown(Cape(depth=3), TABLE, roots=(0, 2, 3))
    assert [paths_of(together, row) for row in range(3)] == [
        paths_of(grown(Cape(depth=3), TABLE, roots=(root,))) for root in (0, 2, 3)
    ]
