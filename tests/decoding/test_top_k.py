"""The largest values by groups are those of `jax.lax.top_k`, ties included."""

import jax
import numpy as np
import pytest

from jaxspec.decoding.top_k import FEW, GROUP, top_k


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("size", [FEW, FEW + GROUP, FEW + 1])
def test_as_a_sort_of_all_of_them(size: int, count: int):
    rng = np.random.default_rng(size + count)
    many_ties = rng.integers(0, 5, (2, 2, size)).astype(np.float32)
    few_ties = rng.normal(size=(2, 2, size)).astype(np.float32)
    mostly_cut = np.where(few_ties > 3.0, few_ties, -np.inf)  # as top-p leaves them
    mostly_cut[0, 0] = -np.inf
    for values in (many_ties, few_ties, mostly_cut):
        for found, wanted in zip(
            jax.jit(top_k, static_argnums=1)(values, count), jax.lax.top_k(values, count), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_more_than_there_are():
    found, place = top_k(jax.numpy.array([2.0, 3.0, 1.0]), 5)
    assert found.tolist() == [3.0, 2.0, 1.0] and place.tolist() == [1, 0, 2]
