"""What several parts of the battery ask for."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxspec.model import attention_kernel, linear


@pytest.fixture
def kernels_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Two to four rows go through a kernel one by one, as on a CPU: these are otherwise too small for it to pay."""
    monkeypatch.setattr(linear, "WORTH_IT", (0, 2**21))
    jax.clear_caches()
    assert "scan" in str(jax.make_jaxpr(lambda x: linear.product(x, x.T))(np.ones((2, 2), np.float32)))
    yield
    jax.clear_caches()


@pytest.fixture
def attention_in_kernel(monkeypatch: pytest.MonkeyPatch):
    """Every attention goes through the kernel for TPUs, interpreted, in several blocks of the cache."""
    calls = []

    def attend(*given: Any):
        calls.append(given)
        return kernel(*given, interpret=True)

    kernel = attention_kernel.attend_in_kernel
    monkeypatch.setattr(attention_kernel, "fits", lambda query, rows: rows >= 2 * attention_kernel.BLOCK)
    monkeypatch.setattr(attention_kernel, "BLOCK", 32)
    monkeypatch.setattr(attention_kernel, "attend_in_kernel", attend)
    jax.clear_caches()
    yield
    assert calls
    jax.clear_caches()
