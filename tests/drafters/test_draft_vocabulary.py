"""Draft vocabularies: their masks, and the selected tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.drafters.draft_vocabulary import ids_of, most_frequent, size_of, to_mask


@given(st.integers(1, 70).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1))))
def test_a_mask_holds_its_ids(case: tuple[int, set[int]]):
    size, ids = case
    mask = to_mask(ids, size)
    assert (mask is None) == (len(ids) == size)
    assert ids_of(mask, size).tolist() == sorted(ids)
    assert size_of(mask, size) == len(ids)


@pytest.mark.parametrize(
    ("ids", "words"),
    [([], "at least one"), ([3, 96], "token 96"), ([-1, 2], "token -1"), ([5, 2, 5], "token 5 more than once")],
)
def test_ids_that_are_no_vocabulary_are_refused(ids: list[int], words: str):
    with pytest.raises(ValueError, match=words):
        to_mask(ids, 96)


@pytest.mark.parametrize(
    ("mask", "words"),
    [("zz", "hexadecimal"), ("ff", "1 bytes"), ("0000", "without tokens"), ("ffff", "above 9")],
)
def test_masks_that_are_none_are_refused(mask: str, words: str):
    with pytest.raises(ValueError, match=words):
        ids_of.__wrapped__(mask, 10)


def test_the_most_frequent_are_taken_and_of_equals_the_lowest():
    counts = np.array([0, 5, 2, 0, 5, 1, 0, 2])
    assert most_frequent(counts, 3).tolist() == [1, 2, 4]
    assert most_frequent(counts, 6).tolist() == [0, 1, 2, 4, 5, 7]
    assert most_frequent(counts, 3, always=[3]).tolist() == [1, 3, 4]
    assert most_frequent(counts, 20).tolist() == list(range(8))
