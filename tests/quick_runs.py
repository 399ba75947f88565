"""Settings with which whole runs take little time."""

import pytest


def shorten(patch: pytest.MonkeyPatch, tree_sizes: tuple[int, ...] = ()) -> None:
    """Compiles verification for these sizes and that of whole trees, and ends timings at once."""
    from jaxspec.costs import timing
    from jaxspec.model import backend  # after the import hook

    patch.setattr(backend, "CPU_TREE_SIZES", tree_sizes)
    patch.setattr(timing, "LEAST_SECONDS", 1e-3)
    patch.setattr(timing, "REPEATS", 1)
