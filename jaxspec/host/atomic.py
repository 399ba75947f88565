"""Outputs that appear only when complete, on disks and in buckets, and errors of full disks."""

import contextlib
import errno
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from rich import filesize

from jaxspec.host import buckets, processes, unfinished
from jaxspec.host.terminal import say

_HOST = platform.node().replace(".", "-")  # in names of temporary files
_REFUSALS = {  # of disks, by their numbers; errors of TensorStore have the words only
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large",
}
UNFINISHED = ".unfinished"  # marks an output in a bucket until it is complete


def check_folder(path: Path) -> None:
    """Raises ValueError if a file cannot be written there: before the work is done, not after."""
    if not buckets.in_bucket(path):
        _check_place(path)
        _check_writable(path.resolve().parent)  # a link stays, and the file that it names is replaced


def _check_place(path: Path) -> None:
    """Raises ValueError if there is no folder for a file, or something else has its name."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {path.absolute().parent} to write {path.name} into")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder, device or pipe, which cannot be written as a whole; name a file")


def _check_writable(folder: Path) -> None:
    """Raises ValueError if this user may make no files in a folder, or it is on a read-only disk."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written to; name another output, or ask its owner for permission")


def check_apart(out: Path, *given: Path) -> None:
    """Raises ValueError if an output would replace one of the files that the command was given."""
    if out.resolve() in [each.resolve() for each in given]:
        raise ValueError(f"{out} is read by this command, and would be replaced by its output; name another output")


def check_ours(out: Path, other: Path) -> None:
    """Raises ValueError if an output exists without the other that is written before or with it, such as its log."""
    if out.exists() and not other.exists():
        raise ValueError(
            f"{out} exists already, and {other.name}, which would be beside it if this command had written it, does "
            "not; name another output or remove it first"
        )


def check_new(out: Path) -> None:
    """Raises ValueError if an output exists already, or the folder that is to hold it does not or is read-only."""
    if out.is_symlink() or is_whole(out):
        raise ValueError(f"{out} exists already; name another output or remove it first")
    if buckets.in_bucket(out):
        return
    if not (parent := out.absolute().parent).is_dir():
        raise ValueError(f"{parent}, the folder that is to hold the output, does not exist; make it first")
    _check_writable(parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that appears whole or not at all. Removes what killed processes have left of it."""
    content = content if isinstance(content, bytes) else content.encode()
    if buckets.in_bucket(path):
        path.write_bytes(content)
        buckets.forget_appended(path)
        return
    if path.is_symlink():
        path = path.resolve()  # the link stays
    _check_place(path)
    _remove_left_overs(path)
    temporary = _temporary(path)
    with unfinished.listed(temporary):
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError as error:
            error.filename, error.filename2 = str(path), None  # not the temporary name
            raise
        finally:
            temporary.unlink(missing_ok=True)


class DiskFullError(OSError):
    """The disk of an output has no space left for it, or allows no file so large."""


@contextlib.contextmanager
def staged(out: Path, needed: int) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name at the end, and is removed if anything is raised.

    In a bucket it is `out` itself. There the file that marks the output as complete, config.json, must be written last.
    `needed` is the number of bytes that will be written.

    Raises:
        ValueError: `out` exists, or the folder that is to hold it does not.
        DiskFullError: too little space, before or during the work.
    """
    if buckets.in_bucket(out):
        with _staged_in_bucket(out):
            yield out
        return
    parent = out.absolute().parent
    if parent.name == "heads" and (parent.parent / "config.json").is_file():
        parent.mkdir(exist_ok=True)  # a checkpoint's first head
    check_new(out)
    try:
        with scratch(out) as temporary:
            check_room(out, needed)
            yield temporary
            check_new(out)  # another process may have made it meanwhile
            temporary.rename(out)
    except DiskFullError:
        raise
    except BaseException as error:
        if (refused := _refused(error)) is None:
            raise
        number, file = refused
        # The work may write elsewhere too, such as checkpoints, which stay.
        place = out if not file or file.startswith(str(parent / f".{out.name}.")) else file
        why, instead = f"the disk of {place} is full", "make room there"
        if number == errno.EFBIG:
            why = f"a file at {place} would be larger than its disk or `ulimit -f` allows"
            instead = "raise that limit, or name a place on another disk"
        raise DiskFullError(f"{why}, so {out} was not written; {instead}") from error


@contextlib.contextmanager
def _staged_in_bucket(out: Path) -> Iterator[None]:
    """Marks `out` as not complete. Removes what an earlier process has left there, and what is there on an error."""
    check_new(out)
    if _is_unfinished(out):
        say(f"removing what an unfinished run has left in {out}")
        buckets.remove(out)
    mark = out / UNFINISHED
    mark.write_bytes(b"")
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error that ended the work matters more
            buckets.remove(out)
        raise
    with contextlib.suppress(OSError):  # without the right to delete: config.json marks the output as complete, too
        mark.unlink()


def is_whole(out: Path) -> bool:
    """Whether an output of `staged` is there and was completed."""
    return out.exists() and not _is_unfinished(out)


def _is_unfinished(out: Path) -> bool:
    """Whether an output in a bucket was begun and not completed."""
    return buckets.in_bucket(out) and (out / UNFINISHED).exists() and not (out / "config.json").exists()


@contextlib.contextmanager
def scratch(place: Path, advice: str = "name another output") -> Iterator[Path]:
    """A folder beside `place` for files of this process, removed at the end; a killed process's is removed first.

    Raises ValueError, with the `advice`, if it cannot be made.
    """
    _remove_left_overs(place)
    temporary = _temporary(place)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"{temporary.parent} cannot be written to ({error.strerror}); {advice}") from error
    try:
        with unfinished.listed(temporary):
            yield temporary
    finally:
        unfinished.remove(temporary)


def resume_in_bucket(out: Path, about: str) -> bool:
    """Marks `out` as not complete for work that resumes, and returns whether anything is left to do.

    Several processes may call this at once. config.json must be written last. A single process then removes the mark,
    UNFINISHED. With several it stays, so that one that comes late finds the output complete.

    Raises ValueError if `out` is complete and not marked, or was begun with another `about`.
    """
    mark = out / UNFINISHED
    begun = mark.read_text() if mark.exists() else None
    if begun == about and is_whole(out):
        return False
    check_new(out)
    if begun is None:
        mark.write_text(about)
    elif begun != about:
        raise ValueError(f"{out} is unfinished and was begun with {begun}, not with {about}; remove it first")
    return True


@contextlib.contextmanager
def staged_by_all(out: Path, needed: int) -> Iterator[Path]:
    """`staged` for several processes that write into one folder, which the first makes and renames."""
    with contextlib.ExitStack() as stack:
        name = processes.broadcast_from_first(lambda: stack.enter_context(staged(out, needed)).name)
        yield out.absolute().with_name(name)
        processes.wait()


def _temporary(out: Path) -> Path:
    """The name of an output while this process writes it."""
    return out.absolute().parent / f".{out.name}.{_HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}.part"


def _remove_left_overs(out: Path) -> None:
    """Removes what killed processes of this host have left of an output."""
    name = re.compile(rf"{re.escape(f'.{out.name}.{_HOST}.')}(\d+)\.[0-9a-f]{{8}}\.part")
    for left in out.absolute().parent.glob(".*.part"):
        if (owner := name.fullmatch(left.name)) and _has_ended(int(owner[1])):
            unfinished.remove(left)


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends nothing
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)  # otherwise it is the process of another user
    return False


def check_room(out: Path, needed: int) -> None:
    """Raises DiskFullError unless the disk of `out`, if it is on one, has room for `needed` bytes and some metadata."""
    if buckets.in_bucket(out):
        return
    free = shutil.disk_usage(out.absolute().parent).free
    if free < (room := int(needed * 1.01) + 2**20):
        more, there = filesize.decimal(room), filesize.decimal(free)
        raise DiskFullError(f"{out} needs {more} more and its disk has {there} free; make room first")


def _refused(error: BaseException) -> tuple[int, str] | None:
    """The number of _REFUSALS that an error or its cause has, and the file that it names, or ""; None without one."""
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        return error.errno, str(error.filename or "")
    if number := next((number for number, words in _REFUSALS.items() if words in str(error)), None):
        return number, next(iter(re.findall('"(/.*?)"', str(error))), "")
    cause = error.__cause__ or error.__context__
    return None if cause in (None, error) else _refused(cause)  # `buckets.described` may return its cause
