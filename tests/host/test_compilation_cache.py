"""Programs in memory are freed in time."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxspec.host import compilation


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit, or none that can be read")
def test_programs_are_let_go_of_where_they_take_too_much_and_only_there():
    double: Any = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    compilation.make_room(1.0)
    assert double._cache_size() == 1
    compilation.make_room(0.0)
    assert double._cache_size() == 0
    assert double(jnp.ones(3)).tolist() == [2, 2, 2]


def test_maps_are_counted_only_after_something_was_compiled(monkeypatch: pytest.MonkeyPatch):
    counts = []
    monkeypatch.setattr(compilation, "make_room", lambda: counts.append(1))
    compilation.make_room_for_more()
    counts.clear()
    compilation.make_room_for_more()
    assert counts == []
    double: Any = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    compilation.make_room_for_more()
    compilation.make_room_for_more()
    assert counts == [1]
