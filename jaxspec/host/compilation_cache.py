"""Compiled programs: stored on disk between runs, and freed in memory when they take too much."""

import functools
import gc
import threading
from pathlib import Path
from typing import Any

import jax

from jaxspec.host.environment import cache_folder

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
    """Lets go of the compiled programs in memory, once they take this share of the maps that a process may have.

    A loop takes up to some 2,500 on a CPU, of the 65,530 that Linux allows by default, and a process that
    asks for more is aborted. Those kept on disk are read again when they are needed, which takes seconds each, so that
    a share should be as large as what is compiled before the next call allows.
    """
    if not (_MAPS.exists() and _MOST_MAPS.exists()):
        return
    if _MAPS.read_bytes().count(b"\n") > share * int(_MOST_MAPS.read_text()):
        jax.clear_caches()
        gc.collect()


def make_room_for_more() -> None:
    """`make_room` if anything was compiled since the last call; otherwise it costs nothing. Call it before decoding."""
    compiled = _compiled()
    if compiled.is_set():
        compiled.clear()
        make_room()


@functools.cache
def _compiled() -> threading.Event:
    """An event that is set, and set again whenever JAX compiles a program."""
    compiled = threading.Event()
    compiled.set()

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        if event == _COMPILED:
            compiled.set()

    jax.monitoring.register_event_duration_secs_listener(listen)
    return compiled
