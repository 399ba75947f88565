"""Fixtures of several parts of the battery."""

from typing import Any

import jax
import pytest

from jaxspec.model import attention_kernel


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
