"""Targets of other kinds than a small LLaMA in float32: every drafter gives the text of their own plain decoding.

Of a mixture of experts one token reads few experts, a tree all. Norms of queries and keys (Qwen3) are in every layer
that begins as one of the target's. A quantised target is another target.
"""

import dataclasses
import functools

import pytest

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from jaxspec.model.quantization import quantized
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import NEW, check_texts, models, requests, run, speculation

STATIC = "static,paths=0:1:2:00:01:10:000"
SHAPES = {"mixture": {"num_experts": 4, "experts_per_token": 2}, "qk-norm": {"qk_norm": True}}
METHODS = (
    "early-exit+chain,length=3",
    f"edd+{STATIC}",
    "layer-skip+chain,length=3",
)  # the target's layers, or their like
ROWS = [
    *zip(("mixture", "mixture", "qk-norm"), METHODS, strict=True),
    ("int8", "layer-skip+chain,length=4+threshold,gamma=0.2"),
    ("int4", "early-exit+chain,length=3"),
]
MORE = [
    *zip(("qk-norm", "qk-norm", "mixture"), METHODS, strict=True),
    *((kind, method) for kind in SHAPES for method in ("eagle+chain,length=3", "medusa+static,paths=0:1:2:3:4:00:10")),
    ("int8", f"early-exit+{STATIC}"),
    ("int4", "eagle+eagle2,total=12,depth=4,width=3"),
]


@functools.cache
def target_of(kind: str) -> Models:
    """A target of the kind."""
    if kind in SHAPES:
        return models(vocab_size=23, **SHAPES[kind])
    floats = models(vocab_size=23)
    target = dataclasses.replace(floats, target=quantized(floats.target, kind))
    assert {kind, "int8"} <= {str(leaf.dtype) for leaf in module_to_dict(target.target).values()}
    return target


@pytest.mark.parametrize(("kind", "method"), [*ROWS, *(pytest.param(*row, marks=pytest.mark.soak) for row in MORE)])
def test_equals_its_own_plain_decoding(kind: str, method: str, prompts: list[list[int]]):
    target, asked = target_of(kind), requests(prompts, NEW)
    plain, _ = run(speculation(parse_method("plain"), True), target, asked)
    check_texts(speculation(parse_method(method), True), target, asked, plain)


@pytest.mark.soak
def test_a_quantised_target_is_sampled_from_its_own_distribution():
    floats = models(VOCAB)
    target = dataclasses.replace(floats, target=quantized(floats.target, "int8"))
    assert p_value(speculation(parse_method(f"early-exit+{STATIC}"), False), target, 0.7, 0.8) > FALSE_ALARM
