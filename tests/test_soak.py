"""The long tests run in parts, and a run that was stopped goes on; on a small suite of its own."""

import re
from pathlib import Path

import pytest

from tests import soak, tree_state

pytest_plugins = ["pytester"]

SUITE = """
import pathlib, pytest
@pytest.mark.parametrize("i", range(7))
def test_each(i):
    pathlib.Path(f"ran-{i}").touch()
    assert i != 5 or pathlib.Path("mended").exists()
@pytest.mark.soak
def test_long():
    pathlib.Path("ran-long").touch()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(soak, "KEPT", pytester.path / "kept")
    monkeypatch.setattr(tree_state, "name", lambda: "here")
    pytester.makepyfile(SUITE)
    pytester.makeconftest("from tests.soak import pytest_addoption, pytest_collection_modifyitems, pytest_configure")
    pytester.makeini("[pytest]\nmarkers = soak")
    return pytester


def ran(suite: pytest.Pytester, *options: str) -> set[str]:
    """What ran of the suite in one run of pytest."""
    suite.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)
    files = list(suite.path.glob("ran-*"))
    for file in files:
        file.unlink()
    return {file.name.removeprefix("ran-") for file in files}


def test_parts_have_every_test_once(suite: pytest.Pytester):
    assert ran(suite) == set("0123456")
    parts = [ran(suite, "--soak", "--part", f"{k}/3") for k in (1, 2, 3)]
    assert sorted(name for found in parts for name in found) == [*"0123456", "long"]
    assert all(parts)


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.soak)])
def test_what_passed_is_left_out(suite: pytest.Pytester, workers: str):
    options, every = ("--soak", "--resume", "-n", workers), {*"0123456", "long"}
    assert ran(suite, *options) == every
    assert ran(suite, *options) == {"5"}
    Path("mended").touch()
    assert ran(suite, *options) == {"5"}
    assert ran(suite, *options) == set()
    assert ran(suite, "--soak", "-n", workers) == every


def test_results_are_kept_by_the_state_of_the_tree():
    assert re.fullmatch(r"[0-9a-f]{12}(\+[0-9a-f]{8})?|unknown", tree_state.name())


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_what_is_no_part(text: str):
    with pytest.raises(Exception, match="a part is given as 2/8"):
        soak.part(text)
