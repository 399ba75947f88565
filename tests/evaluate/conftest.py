"""What tests of whole runs share."""

import pytest

from jaxspec import engine
from jaxspec.evaluate import cost


@pytest.fixture(scope="module")
def little_to_compile_and_time():
    """One tree size a method, and timings that are over at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CPU_SIZES", ())
        patch.setattr(cost, "LEAST_SECONDS", 1e-3)
        patch.setattr(cost, "REPEATS", 1)
        yield
