"""What several parts of the battery ask for."""

import jax
import numpy as np
import pytest

from jaxspec.model import linear


@pytest.fixture
def kernels_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Two to four rows go through a kernel one by one, as on a CPU: these are otherwise too small for it to pay."""
    monkeypatch.setattr(linear, "WORTH_IT", (0, 2**21))
    jax.clear_caches()
    assert "scan" in str(jax.make_jaxpr(lambda x: linear.product(x, x.T))(np.ones((2, 2), np.float32)))
    yield
    jax.clear_caches()
