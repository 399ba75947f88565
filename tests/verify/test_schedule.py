"""The methods that `verify --methods all` stands for."""

from pathlib import Path

import pytest

from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.engine.head_weights import heads_of
from jaxspec.methods.method import default_method, parse_method
from jaxspec.verify.schedule import expand_methods, sound


def test_every_part_is_among_those_that_are_checked_whatever_the_time():
    names, _ = expand_methods(FOLDER, ["all"], seed=1)
    first = {part for name in names for part in name.split("+")}
    assert first == {"plain", *(part for row in sound(FOLDER) for part in row)}
    assert not any(part.startswith("confidence") for part in first), "no head of builtin has estimates to stop by"


@pytest.mark.parametrize("seed", [0, 1])
def test_history_stands_beside_the_head_that_users_run(seed: int):
    first, later = ([parse_method(name) for name in names] for names in expand_methods(FOLDER, ["all"], seed))
    beside = {method.head for method in (*first, *later) if method.history}
    assert beside == {default_method(heads_of(FOLDER)[0].values()).head}
    assert 1 <= sum(method.history > 0 for method in first) <= len(first) / 2


def test_without_heads_there_is_no_history(tmp_path: Path):
    assert {drafter for drafter, _, _ in sound(tmp_path)} == {"ngram"}
