"""Targets of other shapes than a LLaMA's: every drafter leaves their text as it is.

Of a mixture of experts one token reads few experts, a tree all. Norms of queries and keys (Qwen3) are in every layer
that begins as one of the target's.
"""

import numpy as np
import pytest

from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.methods.method import parse_method
from tests.lossless.harness import models, requests, run, speculation

NEW = 30
SHAPES = {"mixture": {"num_experts": 4, "experts_per_token": 2}, "qk-norm": {"qk_norm": True}}
# Drafters with layers of the target's shape, or with the target's own layers; and trees. A random Medusa head's first
# choice was never accepted, so it drafts siblings.
METHODS = (
    "early-exit+chain,length=3",
    "edd+static,paths=0:1:2:00:01:10:000",
    "layer-skip+chain,length=3",
    pytest.param("eagle+chain,length=3", marks=pytest.mark.soak),
    pytest.param("medusa+static,paths=0:1:2:3:4:00:10", marks=pytest.mark.soak),
)


@pytest.fixture(scope="module", params=SHAPES)
def target(request: pytest.FixtureRequest) -> Models:
    return models(vocab_size=23, **SHAPES[request.param])


@pytest.fixture(scope="module")
def plain(target: Models) -> list[list[int]]:
    return run(speculation(parse_method("plain"), True), target, asked())[0]


def asked() -> list[Request]:
    return requests([np.random.default_rng(3).integers(0, 23, size=9).tolist()], NEW)


@pytest.mark.parametrize("method", METHODS)
def test_equals_plain_decoding(method: str, target: Models, plain: list[list[int]]):
    texts, history = run(speculation(parse_method(method), True), target, asked())
    assert texts == plain
    assert history.accepted.sum() > 0, "no draft was accepted, so nothing was tested"
