"""Outputs appear whole or not at all."""

import errno
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxspec.host.atomic import (
    DiskFullError,
    check_apart,
    check_folder,
    check_new,
    check_ours,
    scratch,
    staged,
    write_whole,
)
from jaxspec.host.buckets import described
from jaxspec.host.json_lines import append_lines


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


TENSORSTORE = 'Error writing "a/c/0" in OCDBT database at local file "{}/": No space left on device'


def test_the_disk_that_is_full_is_named(tmp_path: Path):
    """A training writes its data, checkpoints and metrics elsewhere, and they stay."""
    (run := tmp_path / "run").mkdir()
    (run / "metrics").symlink_to("/dev/full")

    def fail(error: Exception) -> None:
        raise error

    def prepare(folder: Path) -> None:
        with staged(run / "data", 0):
            fail(OSError(errno.ENOSPC, "full"))

    out = f"the disk of {tmp_path}/out is full, so {tmp_path}/out was not written; make room there"
    for work, said in (
        (lambda folder: fail(ValueError(TENSORSTORE.format(folder / "params"))), out),
        (lambda folder: fail(OSError(errno.EDQUOT, "full", str(folder / "a"))), out),
        (lambda folder: fail(ValueError(TENSORSTORE.format(run / "checkpoints"))), f"of {run}/checkpoints/ is full"),
        (lambda folder: append_lines(run / "metrics", [{"loss": 1.0}]), f"of {run}/metrics is full, so {tmp_path}/out"),
        (prepare, f"the disk of {run}/data is full, so {run}/data was not written"),
    ):
        with pytest.raises(DiskFullError, match=said), staged(tmp_path / "out", 0) as folder:
            work(folder)


def test_a_file_that_is_too_large_for_a_disk(tmp_path: Path):
    """As FAT's limit of 4 GiB, or `ulimit -f`."""
    run = tmp_path / "run" / "checkpoints"
    for error, place in (
        (lambda folder: OSError(errno.EFBIG, "File too large", str(folder / "a")), tmp_path / "out"),
        (lambda folder: ValueError(f"Failed writing: \"{run}\": File too large [os_error_code='27']"), run),
    ):
        said = (
            f"a file at {place} would be larger than its disk or `ulimit -f` allows, so {tmp_path}/out was not written"
        )
        with pytest.raises(DiskFullError, match=said), staged(tmp_path / "out", 0) as folder:
            raise error(folder)
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_is_its_own_cause_is_raised(tmp_path: Path):
    """As errors of a bucket's connection are, which have a number and words already."""
    lost = ConnectionResetError(errno.ECONNRESET, "reset")
    with pytest.raises(ConnectionResetError), staged(tmp_path / "out", 10):
        raise described(lost, "gs://bucket/file") from lost
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_is_refused_before_the_work(tmp_path: Path):
    for out, message in ((tmp_path, "exists already"), (tmp_path / "no" / "out", "does not exist; make it first")):
        with pytest.raises(ValueError, match=message), staged(out, 10):
            pytest.fail("it began all the same")
    with pytest.raises(DiskFullError, match="make room first"), staged(tmp_path / "out", 2**60):
        pytest.fail("it began all the same")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", [check_folder, check_new])
def test_a_folder_without_permission_is_refused_before_the_work(
    check: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check(tmp_path / "out.json")
    (there := tmp_path / "there").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != there)
    (tmp_path / "link.json").symlink_to(there / "out.json")
    for name in ("there/out.json", "link.json") if check is check_folder else ("there/out",):
        with pytest.raises(ValueError, match=f"^{there} cannot be written to; name another output"):
            check(tmp_path / name)
    assert list(there.iterdir()) == []


def test_an_output_that_another_process_made_meanwhile_stays(tmp_path: Path):
    def both() -> None:
        with staged(tmp_path / "out", 10) as folder:
            (folder / "a").write_text("ours")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "config.json").write_text("theirs")

    with pytest.raises(ValueError, match="out exists already"):
        both()
    assert [file.read_text() for file in tmp_path.rglob("*") if file.is_file()] == ["theirs"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = rf"^{tmp_path} cannot be written to \(Read-only file system\); name another output$"
    with pytest.raises(ValueError, match=message), staged(tmp_path / "out", 10):
        pytest.fail("it began all the same")


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path):
    """A folder stays whose process lives, is on another machine, or made another output."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as living:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        host, parts = platform.node().replace(".", "-"), {}
        for name, owner in {
            "left": f"out.{host}.{ended.pid}",
            "at work": f"out.{host}.{living.pid}",
            "elsewhere": f"out.another-{host}.{ended.pid}",
            "of another": f"out2.{host}.{ended.pid}",
            "longer": f"out.more.{host}.{ended.pid}",
        }.items():
            parts[name] = tmp_path / f".{owner}.0123abcd.part"
            parts[name].mkdir()
            (parts[name] / "config.json").write_text("{}")
        with staged(tmp_path / "out", 10) as folder:
            assert folder.is_dir()
        living.kill()
    assert not parts.pop("left").exists()
    assert sorted(tmp_path.iterdir()) == sorted([*parts.values(), tmp_path / "out"])


def test_the_name_that_is_given_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        killed = [staged(tmp_path / "out", 10) for _ in range(2)]
        for each in killed:
            each.__enter__()
    assert len(list(tmp_path.iterdir())) == 1, "the second did not remove what the first left"
    with staged(tmp_path / "out", 10):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    host = platform.node().replace(".", "-")
    left, other = (tmp_path / f".{name}.{host}.{ended.pid}.0123abcd.part" for name in ("a", "b"))
    for each in (left, other):
        each.write_text("half")
    write_whole(tmp_path / "a", "new")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "a"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    (file := tmp_path / "a").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \ud800")
    assert file.read_text() == "old"
    write_whole(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_links_stay_and_what_is_no_file_is_refused(tmp_path: Path):
    (link := tmp_path / "link").symlink_to(file := tmp_path / "a")
    write_whole(link, "new")
    assert link.is_symlink() and file.read_text() == "new"
    os.mkfifo(pipe := tmp_path / "pipe")
    for refuse in (lambda: write_whole(pipe, "new"), lambda: check_folder(pipe)):
        with pytest.raises(ValueError, match="pipe is a folder, device or pipe"):
            refuse()
    assert pipe.is_fifo()


def test_an_output_replaces_nothing_that_is_read_or_that_another_wrote(tmp_path: Path):
    (link := tmp_path / "link").symlink_to(file := tmp_path / "a.json")
    with pytest.raises(ValueError, match="is read by this command"):
        check_apart(link, tmp_path / "b", file)
    check_ours(file, log := tmp_path / "a.json.jsonl")
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"a.json exists already, and a.json.jsonl, .* does not"):
        check_ours(file, log)
    log.write_text("")
    check_ours(file, log)


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, content: bytes):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(PermissionError) as raised:
        write_whole(tmp_path / "report.html", "<html>")
    assert raised.value.filename == str(tmp_path / "report.html")


def test_a_scratch_folder_goes_with_its_process(tmp_path: Path):
    place = tmp_path / "all" / "model"
    killed = place.with_name(f".model.{platform.node().replace('.', '-')}.{2**22 + 1}.00000000.part")
    killed.mkdir(parents=True)
    with scratch(place) as folder:
        (folder / "shard").write_text("")
        assert not killed.exists()
    assert [*place.parent.iterdir()] == []
