"""Models and prompts of the battery, and plain decoding's text."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from jaxspec.model import attention_kernel
from tests.lossless import distribution
from tests.lossless.harness import NEW, models, requests, run, speculation


@pytest.fixture(autouse=True, scope="session")
def more_texts(request: pytest.FixtureRequest):
    """Distributions are compared over four times as many texts with --soak."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--soak"):
            patch.setattr(distribution, "TEXTS", 4 * distribution.TEXTS)
        yield


@pytest.fixture(scope="module")
def target() -> Models:
    """The target and its drafters; a module that needs others has a fixture of the same name."""
    return models(vocab_size=23)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of one chunk, two and four."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 23, size=n).tolist() for n in (1, 8, 13, 25)]


@pytest.fixture(scope="module")
def plain(target, prompts) -> list[list[int]]:
    """Plain greedy decoding's text of each prompt."""
    texts, history = run(speculation(parse_method("plain"), True), target, requests(prompts, NEW))
    assert [len(text) for text in texts] == [NEW] * len(prompts)
    assert (history.committed == 1).all()
    return texts


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
