"""Paths in buckets of Google Cloud Storage, `gs://BUCKET/FOLDER`, with the methods of local paths.

`etils.epath` does the work, through gcsfs, which repeats a request that failed for half a minute with growing pauses.
An object appears when it is whole, and replaces an older one at once. Folders do not exist by themselves, and cannot be
renamed: in one that many objects make up, an object written last marks the whole (`atomic.staged`).
"""

import atexit
import base64
import dataclasses
import errno
import hashlib
import importlib.util
import io
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PosixPath, PurePosixPath
from types import SimpleNamespace
from typing import Any, TypeVar, get_args

T = TypeVar("T")
SCHEME = "gs:"
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+:)(?:/|$)")  # pathlib may have removed one of its slashes
APPEND_EVERY = 10.0  # seconds after which appended text is uploaded, the whole object each time
_PART = 2**24  # bytes that are downloaded in one go
_UPLOAD_SHARE = 0.1  # of the time that uploads of appended text may take


def to_path(text: str | Path) -> Path:
    """A local path, with `~` as the home folder; or for `gs://…` one in a bucket.

    Raises ValueError for other addresses, an unknown home folder, and a bucket if the extra gcs is missing.
    """
    if isinstance(text, BucketPath):
        return text
    local = Path(text)
    if (scheme := _ADDRESS.match(str(text))) is None or Path(scheme[1]).exists():
        return _with_home(local) if str(local).startswith("~") and not local.exists() else local
    if scheme[1] != SCHEME:
        address = f"{scheme[1]}//{str(text)[scheme.end() :].lstrip('/')}"
        raise ValueError(f"{address} is no local path and not gs://BUCKET/FOLDER; for the hub write ORG/NAME")
    if not (found := BucketPath(text)).parts[1:]:
        raise ValueError(f"{found} names no bucket; write gs://BUCKET/FOLDER")
    if importlib.util.find_spec("gcsfs") is None:
        raise ValueError(f"{found} is in a bucket, which needs more packages: pip install gcsfs google-cloud-storage")
    os.environ.setdefault("EPATH_USE_TF", "false")  # where TensorFlow is installed, epath would load it, for JAX too
    return found


def _with_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path} begins with a home folder that is not known; write the whole path") from None


def in_bucket(path: str | Path) -> bool:
    return isinstance(path, BucketPath)


def with_paths(value: Any, kind: Any = None) -> Any:
    """Applies `to_path` to the paths in options, or in a value of type `kind`, and to text where that may be a path."""
    if isinstance(value, Path) or (isinstance(value, str) and _has_path(kind)):
        return to_path(value)
    if isinstance(value, tuple):
        return tuple(with_paths(each, kind) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: with_paths(getattr(value, field.name), field.type) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _has_path(kind: Any) -> bool:
    return kind is Path or any(map(_has_path, get_args(kind)))


class BucketPath(PosixPath):
    """A path in a bucket. Its methods raise OSError with the whole reason in `strerror`."""

    __slots__ = ()

    def __str__(self) -> str:
        return "/".join((f"{SCHEME}/", *self.parts[1:]))

    __fspath__ = as_posix = __str__

    def _there(self, work: Callable[[Any], T]) -> T:
        """The result of `work` on the `epath.Path`, whose errors become those that the methods raise."""
        try:
            return work(_epath()(str(self)))
        except Exception as error:
            raise described(error, self) from error

    def resolve(self, strict: bool = False) -> Any:
        return self

    absolute = expanduser = resolve

    def relative_to(self, other: Any, *_: Any, **__: Any) -> Any:
        """A relative path is in no bucket."""
        return PurePosixPath(*self.parts).relative_to(PurePosixPath(*PurePosixPath(other).parts))

    def is_symlink(self) -> bool:
        return False

    def exists(self, **_: Any) -> bool:
        return self._there(lambda there: there.exists())

    def is_file(self, **_: Any) -> bool:
        return self._there(lambda there: there.is_file())

    def is_dir(self, **_: Any) -> bool:
        return self._there(lambda there: there.is_dir())

    def stat(self, **_: Any) -> Any:
        """An object with `st_size` alone."""
        return SimpleNamespace(st_size=self._there(lambda there: there.stat().length))

    def iterdir(self) -> Iterator["BucketPath"]:
        return map(type(self), self._there(lambda there: [str(each) for each in there.iterdir()]))

    def glob(self, pattern: str, **_: Any) -> Iterator["BucketPath"]:
        return map(type(self), self._there(lambda there: [str(each) for each in there.glob(pattern)]))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder is there once it holds an object."""

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        stream = self._there(lambda there: there.open(mode))
        return io.BufferedReader(_Stream(self, stream)) if mode == "rb" else stream

    def read_bytes(self) -> bytes:
        return self._there(lambda there: there.read_bytes())

    def read_text(self, encoding: str | None = None, errors: str | None = None, **_: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict").replace("\r\n", "\n")

    def write_bytes(self, data: Any) -> int:
        return self._there(lambda there: there.write_bytes(data))

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        return self.write_bytes(data.encode())

    def unlink(self, missing_ok: bool = False) -> None:
        forget_appended(self)  # what still waits must not be uploaded
        self._there(lambda there: there.unlink(missing_ok=missing_ok))


class _Stream(io.RawIOBase):
    """The bytes of an object. A read that fails raises as the methods of `BucketPath`."""

    def __init__(self, path: BucketPath, stream: Any):
        self._path, self._stream = path, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        try:
            return self._stream.readinto(buffer)
        except Exception as error:
            raise described(error, self._path) from error

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def files_under(folder: Path) -> list[Path]:
    """All files in a folder and the folders below it, sorted."""
    if not isinstance(folder, BucketPath):
        return sorted(file for file in _inside(folder, folder.resolve(), set()) if file.is_file())
    try:  # and not epath's walk, for which a folder that cannot be listed is empty
        found = [f"{SCHEME}//{name}" for name in _gcs().find(str(folder))]
    except FileNotFoundError:
        return []
    except Exception as error:
        raise described(error, folder) from error
    # An object whose name ends with a slash stands for a folder.
    return sorted(BucketPath(name) for name in found if name.startswith(f"{folder}/") and not name.endswith("/"))


def _inside(folder: Path, root: Path, seen: set[Path]) -> Iterator[Path]:
    """All below a folder, through links to folders that are not below `root`; each folder once (`seen`)."""
    if not folder.is_dir() or (place := folder.resolve()) in seen:
        return
    seen.add(place)
    for path in sorted(folder.iterdir()):
        yield path
        if not (path.is_symlink() and path.resolve().is_relative_to(root)):
            yield from _inside(path, root, seen)


def remove(folder: Path) -> None:
    """Removes a folder on a disk, or all objects of one in a bucket."""
    if not in_bucket(folder):
        shutil.rmtree(folder)
        return
    for file in files_under(folder):
        file.unlink(missing_ok=True)


def md5(path: Path) -> str | None:
    """The MD5 of an object in base64, as the bucket gives it; None: the object was put together from parts."""
    try:
        return _gcs().info(str(path)).get("md5Hash")
    except Exception as error:
        raise described(error, path) from error


def download(path: Path, file: Path, digest: str | None) -> Path:
    """Copies an object into a file on a disk. Raises OSError if its MD5 is not `digest`, unless that is None."""
    hashed = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as stream, file.open("wb") as copy:
            for part in iter(lambda: stream.read(_PART), b""):
                hashed.update(part)
                copy.write(part)
    except Exception as error:
        raise described(error, path) from error
    if digest is not None and base64.b64encode(hashed.digest()).decode() != digest:
        file.unlink()
        raise OSError(errno.EIO, "it arrived damaged; run the same command again", str(path))
    return file


def _epath() -> Any:
    """`epath.Path` without cached listings, because Orbax writes by other means."""
    from etils import epath
    from fsspec.config import conf

    conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    for name in ("fsspec", "gcsfs"):  # which log a traceback of each error
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return epath.Path


def _gcs() -> Any:
    """gcsfs, which gives more than `epath.Path`."""
    _epath()  # its settings are gcsfs's
    from fsspec import filesystem

    return filesystem("gcs")


def described(error: Exception, path: str | Path) -> OSError:
    """An error of gcsfs or TensorStore in words, with what to do."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    text = f"{vars(error).get('code', '')} {type(error).__module__} {error}"
    number, reason = errno.EIO, "the bucket does not answer; try again later"
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object, or no such bucket", str(path))
    if "Attempt to open a bucket" in text:
        return IsADirectoryError(errno.EISDIR, "it is a bucket and not an object in one", str(path))
    if re.search("^403|Forbidden|PERMISSION_DENIED", text):
        number, reason = errno.EACCES, "access is denied; ask the owner of the bucket"
    elif re.search("^401|^ google.auth|UNAUTHENTICATED", text):
        number, reason = errno.EACCES, "no valid credentials; run `gcloud auth application-default login`"
    return OSError(number, f"{reason} ({' '.join(str(error).split())[:200] or type(error).__name__})", str(path))


@dataclasses.dataclass
class _Appended:
    """The whole text of an object that grows, and whether and when it is to be uploaded."""

    text: str
    waiting: bool = False
    due: float = 0.0  # on the monotonic clock


_appended: dict[Path, _Appended] = {}
_lock = threading.RLock()


def append(path: Path, text: str) -> None:
    """Adds text to an object, of which this process is the only writer. Objects cannot grow, so the whole is uploaded
    again after some seconds, and at the end of the process."""
    with _lock:
        if path not in _appended:
            atexit.register(flush)
            _appended[path] = _Appended(path.read_text() if path.exists() else "")
        log = _appended[path]
        log.text, log.waiting = log.text + text, True
        if time.monotonic() >= log.due:
            _upload(path, log)


def forget_appended(path: Path) -> None:
    """Forgets appended text, because another text has replaced the whole object."""
    with _lock:
        _appended.pop(path, None)


def flush() -> None:
    """Uploads what was appended and waits."""
    with _lock:
        for path, log in _appended.items():
            if log.waiting:
                _upload(path, log)


def _upload(path: Path, log: _Appended) -> None:
    began = time.monotonic()
    path.write_text(log.text)
    now = time.monotonic()
    log.waiting, log.due = False, now + max(APPEND_EVERY, (now - began) / _UPLOAD_SHARE)
