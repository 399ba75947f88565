"""Compiled programs: stored on disk, freed in memory when they take too much, compiled in parallel."""

import functools
import gc
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxspec.host.environment import cache_folder
from jaxspec.host.terminal import progress

_MAPS = Path("/proc/self/maps")  # on Linux: a line for each piece of mapped memory
_MOST_MAPS = Path("/proc/sys/vm/max_map_count")
_COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event, also after reading a program from disk


def keep_compilations() -> Path | None:
    """Turns on JAX's persistent compilation cache, unless the user has chosen a place for it (or turned it off)."""
    config: Any = jax.config  # its options are made at run time
    if config.jax_compilation_cache_dir is None and config.jax_enable_compilation_cache:
        place = cache_folder() / "compiled"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:  # a read-only home: compile anew each time
            return None
        config.update("jax_compilation_cache_dir", str(place))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return Path(config.jax_compilation_cache_dir) if config.jax_compilation_cache_dir else None


def make_room(share: float = 0.9) -> None:
    """Frees the compiled programs in memory, once they take this share of the maps that a process may have.

    A loop takes up to some 2,500 on a CPU, of the 65,530 that Linux allows by default, and a process that needs more is
    aborted. Reading a program from disk again takes seconds, so a share should be as large as possible.
    """
    are_known = _MAPS.exists() and _MOST_MAPS.exists()
    if are_known and _MAPS.read_bytes().count(b"\n") > share * int(_MOST_MAPS.read_text()):
        jax.clear_caches()
        gc.collect()


def make_room_for_more() -> None:
    """`make_room` if anything was compiled since the last call. Call it before decoding."""
    if (compiled := _compiled()).is_set():
        compiled.clear()
        make_room()


@functools.cache
def _compiled() -> threading.Event:
    """An event that is set whenever JAX compiles a program."""
    compiled = threading.Event()
    compiled.set()

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == _COMPILED:
            compiled.set()

    jax.monitoring.register_event_duration_secs_listener(listen)
    return compiled


AT_ONCE = 2  # Python traces one at a time, and the compiler itself has several threads
PATIENCE = 1.0  # seconds without progress on stderr: a program that is compiled already takes less

Name = TypeVar("Name")
_compiling: set[int] = set()  # threads


def compile_all(programs: Mapping[Name, Callable[[], Any]], name: Callable[[Name], str] = str) -> dict[Name, Any]:
    """Calls the functions that compile some programs, two at a time, and returns their results.

    One at a time if there are several processes, which must all run them in the same order. JAX's settings, such as the
    precision of products, are those of a thread: each call has to make them. An interrupt is raised at once;
    compilations that have begun end in the background. stderr calls a program by its `name`.
    """
    pool = ThreadPoolExecutor(AT_ONCE if jax.process_count() == 1 else 1)
    running: dict[Future[Any], Name] = {}
    try:
        running |= {pool.submit(_noted, program): which for which, program in programs.items()}
        done, waiting = wait(running, PATIENCE)
        if waiting:
            with progress("compiled programs:", len(running), len(done)) as shown:
                left = [future for future in running if future in waiting]
                shown.show(len(done), name(running[left[0]]))
                for future in as_completed(waiting):
                    left.remove(future)
                    shown.done += 1
                    if left and shown.due():
                        shown.show(shown.done, name(running[left[0]]))
    except BaseException:  # Ctrl-C, or the end of a terminated command
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return {which: future.result() for future, which in running.items()}


def _noted(program: Callable[[], Any]) -> Any:
    _compiling.add(threading.get_ident())
    try:
        return program()
    finally:
        _compiling.discard(threading.get_ident())


def still_compiling() -> bool:
    """Whether `compile_all` compiles in any thread, for which Python waits before it exits."""
    return bool(_compiling)
