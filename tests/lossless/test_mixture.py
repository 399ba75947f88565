"""A mixture of experts is decoded by every drafter. One token reads few experts, a tree all: the texts are the same."""

import numpy as np
import pytest

from jaxspec.methods.method import parse_method
from tests.lossless.harness import models, requests, run, speculation

NEW = 30
METHODS = (  # with layers of their own that are the target's shape, or that are the target's; and trees
    "early-exit+chain,length=3",
    "edd+static,paths=0:1:2:00:01:10:000",
    "layer-skip+chain,length=3",
    pytest.param("eagle+chain,length=3", marks=pytest.mark.soak),
    pytest.param("medusa+chain,length=3", marks=pytest.mark.soak),
)


@pytest.fixture(scope="module")
def mixture():
    return models(vocab_size=23, num_experts=4, experts_per_token=2)


@pytest.fixture(scope="module")
def plain(mixture):
    return run(speculation(parse_method("plain"), True), mixture, asked())[0]


def asked():
    return requests([np.random.default_rng(3).integers(0, 23, size=9).tolist()], NEW)


@pytest.mark.parametrize("method", METHODS)
def test_equals_plain_decoding(method: str, mixture, plain):
    texts, history = run(speculation(parse_method(method), True), mixture, asked())
    assert texts == plain
    assert history.accepted.sum() > 0, "no draft was accepted, so nothing was tested"
