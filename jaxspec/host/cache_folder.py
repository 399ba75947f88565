"""The user's cache folder, where jaxspec keeps what it can make again: compiled programs and cost tables."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$JAXSPEC_CACHE`, else `jaxspec` in the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache)."""
    if chosen := os.environ.get("JAXSPEC_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxspec"
