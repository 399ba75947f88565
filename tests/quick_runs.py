"""Settings with which whole runs take little time."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def quick_settings() -> Iterator[None]:
    """One tree size a method, and timings that are over at once."""
    from jaxspec.costs import timing
    from jaxspec.decoding import speculation  # after the import hook

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation, "CPU_SIZES", ())
        patch.setattr(timing, "LEAST_SECONDS", 1e-3)
        patch.setattr(timing, "REPEATS", 1)
        yield
