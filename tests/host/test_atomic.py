"""Outputs appear whole or not at all."""

import errno
from pathlib import Path

import pytest

from jaxspec.host.atomic import DiskFullError, staged, write_whole


def test_a_folder_appears_when_all_of_it_is_there(tmp_path: Path):
    with staged(tmp_path / "out", 10) as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "a").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError("x"), RuntimeError), (OSError(errno.ENOSPC, "full"), DiskFullError)]
)
def test_nothing_stays_of_what_was_broken_off(error: Exception, raised: type[Exception], tmp_path: Path):
    def fill() -> None:
        with staged(tmp_path / "out", 10) as folder:
            (folder / "a").write_text("a")
            raise error

    with pytest.raises(raised):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_is_refused_before_the_work(tmp_path: Path):
    for out, says in ((tmp_path, "exists already"), (tmp_path / "no" / "out", "does not exist; make it first")):
        with pytest.raises(ValueError, match=says), staged(out, 10):
            pytest.fail("it began all the same")
    with pytest.raises(DiskFullError, match="make room first"), staged(tmp_path / "out", 2**60):
        pytest.fail("it began all the same")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    (file := tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \ud800")
    assert file.read_text() == "old"
    write_whole(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]
