"""The largest values are those of `jax.lax.top_k` however they are found, ties included."""

import jax
import numpy as np
import pytest

from jaxspec.decoding import top_k as module
from jaxspec.decoding.top_k import COMPARED, FEW, GROUP, top_k
from jaxspec.model import backend


def hard_values(seed: int, size: int) -> list[np.ndarray]:
    """Many ties, few, and most of them -inf, as top-p leaves them; of either zero there are some."""
    rng = np.random.default_rng(seed)
    many_ties = rng.integers(-2, 3, (2, 2, size)).astype(np.float32)
    few_ties = rng.normal(size=(2, 2, size)).astype(np.float32)
    mostly_cut = np.where(few_ties > 3.0, few_ties, -np.inf).astype(np.float32)
    mostly_cut[0, 0] = -np.inf
    many_ties[1, 1, ::2] *= -1
    return [many_ties, few_ties, mostly_cut]


def is_top_k(found: tuple, values: np.ndarray, count: int) -> None:
    for ours, wanted in zip(found, jax.lax.top_k(values + 0.0, count), strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("size", [FEW, FEW + GROUP, FEW + 1])
def test_as_a_sort_of_all_of_them(size: int, count: int):
    for values in hard_values(size + count, size):
        is_top_k(jax.jit(top_k, static_argnums=1)(values, count), values, count)


@pytest.mark.parametrize(
    ("count", "size"), [(1, 100), (2, 100), (100, 100), (10, COMPARED), (10, COMPARED + 1), (1, 300)]
)
def test_as_a_tpu_finds_them(count: int, size: int, monkeypatch: pytest.MonkeyPatch):
    """By rounds, or of few values by comparing each with each."""
    monkeypatch.setattr(backend, "platform", lambda: "tpu")
    found = jax.jit(lambda values: top_k(values, count))  # traced for this platform
    for values in hard_values(count, size):
        is_top_k(found(values), values, count)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_of_a_vocabulary_that_is_cut_in_four(platform: str, monkeypatch: pytest.MonkeyPatch):
    """On one device; tests/lossless/test_meshes.py has those that hold a part each."""
    monkeypatch.setattr(backend, "platform", lambda: platform)
    monkeypatch.setattr(module, "num_shards", lambda name, length: 4)
    found = jax.jit(lambda values: top_k(values, 9))
    for values in hard_values(7, 256):
        is_top_k(found(values), values, 9)


def test_more_than_there_are():
    found, place = top_k(jax.numpy.array([2.0, 3.0, 1.0]), 5)
    assert found.tolist() == [3.0, 2.0, 1.0] and place.tolist() == [1, 0, 2]
