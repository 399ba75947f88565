"""Prefill by groups of layers and in chunks changes nothing, and there is one program however many groups there are."""

from typing import Any

import chex
import pytest

from jaxspec.decoding import prefill
from jaxspec.decoding.batch import padded, start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.methods.method import parse_method
from tests.lossless.harness import begun, models, prefilled, requests, weights


@pytest.mark.parametrize("method", ["eagle3+chain,length=2", "plain"])
def test_groups_of_layers(method: str, monkeypatch: pytest.MonkeyPatch):
    spec, together = parse_method(method).speculation(greedy=True), [1]
    chosen = weights(spec, models(vocab_size=23, num_layers=6))
    asked = requests([[1, 2, 3], [5] * 11, [7]], 4)
    monkeypatch.setattr(prefill, "layers_together", lambda: together[-1])
    run_group: Any = prefill.run_group  # a jitted function has methods that its type does not show

    def state() -> DecodeState:
        run_group.clear_cache()
        found = begun(spec, chosen, asked, (), 64)
        assert run_group._cache_size() == 1
        return found

    alone = state()
    for most, size in ((4, 3), (8, 6)):
        together.append(most)
        assert prefill.groups(6)[0] == slice(0, size)
        other = state()
        chex.assert_trees_all_close(alone.cache, other.cache, atol=1e-5)
        chex.assert_trees_all_close(alone.drafter, other.drafter, atol=1e-5)
        chex.assert_trees_all_equal(alone.tokens, other.tokens)


def test_a_prompt_may_be_read_in_several_chunks():
    spec = parse_method("plain").speculation(greedy=True)
    chosen = weights(spec, models(vocab_size=23))
    asked = requests([[*range(11)], [3, 1, 4], [5] * 8], 4)
    one, three = (prefilled(spec, chosen, start(spec, chosen, padded(asked), (), 64), n) for n in (12, 4))
    assert (one.tokens == three.tokens).all()
    for row, request in enumerate(asked):
        for whole, parts in zip(one.cache, three.cache, strict=True):
            read = [layer.rows(0, len(request.tokens)) for layer in (whole, parts)]
            chex.assert_trees_all_close(read[0].k[row], read[1].k[row], atol=1e-5)
            chex.assert_trees_all_close(read[0].v[row], read[1].v[row], atol=1e-5)
