"""The uniform tree: which nodes a budget keeps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.builders.static import Static
from jaxspec.builders.uniform import Uniform, likely_paths
from tests.builders.tables import grown, paths_of


def test_the_papers_tree_has_363_nodes():
    paths = likely_paths(3, 5, 1000)
    assert len(paths) == len(set(paths)) == 363
    assert Uniform(total=364).size == 364
    assert Uniform(width=2, depth=3, total=64).size == 15  # smaller than its budget


def test_low_ranks_come_first():
    assert likely_paths(3, 5, 7) == ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 40))
def test_every_node_has_its_parent_and_no_cheaper_one_is_missing(width, depth, total):
    paths = likely_paths(width, depth, total - 1)
    whole = likely_paths(width, depth, width ** (depth + 1) * depth)
    assert len(paths) == min(total - 1, len(whole))
    assert all(len(path) == 1 or path[:-1] in paths for path in paths)
    cost = lambda path: sum(path) + len(path)
    assert max(map(cost, paths)) <= min((cost(path) for path in set(whole) - set(paths)), default=np.inf)


def test_it_grows_as_the_static_tree_of_its_paths():
    table = np.tile([0.5, 0.3, 0.15, 0.05], (4, 1))
    builder = Uniform(width=3, depth=3, total=10)
    found = paths_of(grown(builder, table))
    assert found == paths_of(grown(Static(paths=likely_paths(3, 3, 9)), table))
    assert set(found) == set(likely_paths(3, 3, 9))  # tokens are ranks here
