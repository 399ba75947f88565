"""Compiled programs: stored on disk, freed in memory when they take too much, compiled in parallel."""

import contextlib
import errno
import functools
import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax

from jaxspec.host.atomic import write_whole
from jaxspec.host.buckets import in_bucket, to_path
from jaxspec.host.environment import cache_folder
from jaxspec.host.jax_environment import COMPILER
from jaxspec.host.terminal import progress, say

_MAPS = Path("/proc/self/maps")  # on Linux: a line for each piece of mapped memory
_MOST_MAPS = Path("/proc/sys/vm/max_map_count")
_COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event, also after reading a program from disk

ready: set[tuple[Any, ...]] = set()
"""`Program.ready_key` of each set of programs that is compiled and in memory."""


def keep_compilations() -> Path | None:
    """Turns on JAX's persistent compilation cache, unless the user has set it. Returns its folder; None without one."""
    config: Any = jax.config  # its options are made at run time
    if config.jax_compilation_cache_dir is None and config.jax_enable_compilation_cache:
        place = cache_folder() / "compiled"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:  # a read-only home: compile anew each time
            return None
        config.update("jax_compilation_cache_dir", str(place))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    folder = config.jax_compilation_cache_dir if config.jax_enable_compilation_cache else None
    return to_path(folder) if folder else None


def check_writable(folder: Path) -> None:
    """Raises OSError if no program can be kept there, of which JAX only warns."""
    if in_bucket(folder):
        (mark := folder / ".writable").write_bytes(b"")
        with contextlib.suppress(OSError):  # programs can be kept without the right to delete
            mark.unlink()
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no file can be written there; name another by JAXSPEC_CACHE", str(folder))


def make_room(share: float = 0.9) -> None:
    """Frees the compiled programs in memory, once they take this share of the maps that a process may have.

    A loop takes up to some 2,500 on a CPU, of the 65,530 that Linux allows by default, and a process that needs more is
    aborted. Reading a program from disk again takes seconds, so a share should be as large as possible.
    """
    are_known = _MAPS.exists() and _MOST_MAPS.exists()
    if are_known and _MAPS.read_bytes().count(b"\n") > share * int(_MOST_MAPS.read_text()):
        jax.clear_caches()
        ready.clear()
        gc.collect()


def make_room_for_more() -> None:
    """`make_room` if anything was compiled since the last call. Call it before decoding."""
    _make_room_after(len(compiled()))


@functools.lru_cache(maxsize=1)  # with the number of the last call it does nothing
def _make_room_after(programs: int) -> None:
    make_room()


@functools.cache
def compiled() -> list[str]:
    """JAX's names of the programs that were compiled since the first call, or read from disk.

    Not all versions of JAX can remove a listener, so there is only this one.
    """
    found = list[str]()

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == _COMPILED:
            found.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


AT_ONCE = 2  # Python traces one at a time, and the compiler itself has several threads
PATIENCE = 1.0  # seconds without progress on stderr: a program that is compiled already takes less
MOST_TIMES = 1000  # programs whose times are kept

Name = TypeVar("Name")


class Compilations(Generic[Name]):
    """Runs functions that compile programs, given by name, two at a time and in this order, in threads of its own.

    With several processes one at a time, so that all compile in the same order. JAX's settings, such as the precision
    of products, are thread-local: each function must set them.

    Args:
        programs: a name and a function for each.
        label: a program's name on stderr.
        key: a program's key in the file of compile times, which later processes show. None: no times are kept.
    """

    def __init__(
        self,
        programs: Mapping[Name, Callable[[], Any]],
        label: Callable[[Name], str] = str,
        key: Callable[[Name], str] | None = None,
    ):
        self._label = label
        self._pool = ThreadPoolExecutor(AT_ONCE if jax.process_count() == 1 else 1, thread_name_prefix=COMPILER)
        self._keys = {name: hashlib.sha256(key(name).encode()).hexdigest()[:16] for name in programs} if key else {}
        self._began = time.monotonic()
        self._took = dict[str, float]()  # seconds by key
        self._running = {name: self._pool.submit(self._timed, name, program) for name, program in programs.items()}
        self._pool.shutdown(wait=False)

    def wait(self, names: Collection[Name] | None = None, *, show: bool = True) -> dict[Name, Any]:
        """Waits for some programs, or for all, and returns the functions' results.

        After a second stderr shows the progress, if `show`. An interrupt is raised at once; begun compilations go on.
        """
        wanted = {name: self._running[name] for name in (self._running if names is None else names)}
        try:
            done, waiting = wait(wanted.values(), PATIENCE if show else None)
            if waiting:
                with progress("compiled programs:", len(wanted), len(done)) as shown:
                    shown.show(len(done), self._first(waiting))
                    for future in as_completed(waiting):
                        waiting.remove(future)
                        shown.done += 1
                        if waiting and shown.due():
                            shown.show(shown.done, self._first(waiting))
        except BaseException:  # Ctrl-C, or the end of a terminated command
            self.cancel()
            raise
        found = {name: future.result() for name, future in wanted.items()}
        if names is None:
            keep_times(self._took)
        return found

    def cancel(self) -> None:
        """Cancels the compilations that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def announce(self) -> None:
        """If some programs still compile a second after all began, prints the first one's name on stderr."""
        _, waiting = wait(self._running.values(), max(0.0, self._began + PATIENCE - time.monotonic()))
        if waiting:
            say(f"compiling the {self._first(waiting)}")

    def _first(self, waiting: Collection[Future[Any]]) -> str:
        """The first program that still compiles, and how long it took before."""
        name = next(name for name, future in self._running.items() if future in waiting)
        before = times_before().get(self._keys.get(name, ""))
        return self._label(name) + ("" if before is None else f" (took up to {before:.0f} s before)")

    def _timed(self, name: Name, program: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = program()
        if name in self._keys:
            self._took[self._keys[name]] = time.perf_counter() - began
        return found


def times_before() -> dict[str, float]:
    """By key, the most seconds that a program took in an earlier process, which may have read it from disk."""
    try:
        found = json.loads(_times_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep_times(took: Mapping[str, float]) -> None:
    """Adds the seconds of this process that are worth a remark to those in the user's cache folder."""
    lasting = {key: seconds for key, seconds in took.items() if seconds > PATIENCE}
    if lasting and jax.process_index() == 0:
        known = times_before()
        longest = {key: max(seconds, known.pop(key, 0.0)) for key, seconds in lasting.items()}
        newest = dict([*known.items(), *longest.items()][-MOST_TIMES:])
        with contextlib.suppress(OSError):  # a read-only home
            _times_file().parent.mkdir(parents=True, exist_ok=True)
            write_whole(_times_file(), json.dumps(newest))


def _times_file() -> Path:
    return cache_folder() / "compiled" / "seconds.json"
