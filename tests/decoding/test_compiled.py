"""What XLA makes of the loop: the cache is written in place, never copied."""

import re
from typing import Any

import jax.numpy as jnp
import pytest

from jaxspec.decoding import loop
from jaxspec.methods.method import parse_method
from jaxspec.model import kv_cache
from tests import loops
from tests.lossless.harness import models, requests, speculation, start, weights

ROWS = 96
LOOP: Any = loop.decode  # a jitted function has methods that its type does not show


WITH_HISTORY = ("draft-model,history=3+chain", "eagle,history=3+static", "early-exit,history=3+chain")


def branches_that_return_the_cache(text: str, batch: int, rows: int) -> list[str]:
    """Conditionals whose result, or a part of it, has the cache's shape."""
    shape = re.compile(rf"f32\[{batch},1,(8,{rows}|{rows},8)\]")
    found = re.findall(r"= (.*) conditional\(", text)
    assert found, "there is no branch"
    return [result for result in found if shape.search(result)]


def copies_of_the_cache(text: str, batch: int, rows: int) -> list[str]:
    """Instructions that copy or transpose an array of the cache's shape (one KV head of width 8), anywhere."""
    shape = rf"f32\[{batch},1,(8,{rows}|{rows},8)\]"
    return re.findall(rf"= {shape}\S* (?:copy|transpose)\(.*", text)


def compiled(name: str, batch: int = 1) -> str:
    spec = speculation(parse_method(name), True)
    chosen = weights(spec, models(vocab_size=23))
    state = start(spec, chosen, requests([[1, 2, 3]] * batch, 8), (), ROWS)
    text = LOOP.lower(spec, chosen, state, jnp.int32(ROWS)).compile().as_text()
    assert text
    return text


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        pytest.param("ngram+chain", marks=pytest.mark.soak),
        "ngram+static",
        "dflash+static",
        "edd+static",
        "medusa+chain",
        "layer-skip+chain",
        *WITH_HISTORY,
        *(
            pytest.param(name.replace(",history=3", ""), marks=pytest.mark.soak) for name in WITH_HISTORY
        ),  # a part of those
    ],
)
def test_the_loop_never_copies_the_cache(name):
    """And no branch returns it: neither that which skips a head's pass because of history, nor verification."""
    text = compiled(name)
    assert copies_of_the_cache(text, 1, ROWS) == []
    if name in WITH_HISTORY:
        assert branches_that_return_the_cache(text, 1, ROWS) == []


def test_the_write_must_depend_on_the_verdict(monkeypatch):
    """Without that dependency XLA copies: `after` is needed, and the test above can fail."""
    real = kv_cache.append
    monkeypatch.setattr(kv_cache, "append", lambda cache, rows, start, after: real(cache, rows, start))
    loops.forget()
    try:
        assert copies_of_the_cache(compiled("plain"), 1, ROWS)
    finally:
        loops.forget()
