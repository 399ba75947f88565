"""Where jaxspec keeps what it can make again: compiled programs and calibration tables, in the user's cache folder."""

import os
from pathlib import Path
from typing import Any

import jax


def folder() -> Path:
    """`$JAXSPEC_CACHE`, else `jaxspec` in the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache)."""
    if chosen := os.environ.get("JAXSPEC_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxspec"


def keep_compilations() -> Path | None:
    """Turns on JAX's persistent compilation cache, unless the user has chosen a place for it (or turned it off)."""
    config: Any = jax.config  # its options are made at run time
    if config.jax_compilation_cache_dir is None and config.jax_enable_compilation_cache:
        place = folder() / "compiled"
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:  # a read-only home: compile anew each time
            return None
        config.update("jax_compilation_cache_dir", str(place))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return Path(config.jax_compilation_cache_dir) if config.jax_compilation_cache_dir else None
