"""Settings with which whole runs take little time."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def quick_settings() -> Iterator[None]:
    """One tree size a method, and timings that are over at once."""
    from jaxspec.costs import timing
    from jaxspec.model import backend  # after the import hook

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CPU_TREE_SIZES", ())
        patch.setattr(timing, "LEAST_SECONDS", 1e-3)
        patch.setattr(timing, "REPEATS", 1)
        yield
