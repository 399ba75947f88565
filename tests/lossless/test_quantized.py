"""A quantised target is another target: every method gives the text of its plain decoding."""

import dataclasses

import numpy as np
import pytest

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.methods.method import parse_method
from jaxspec.model.quantization import quantized
from tests.lossless import test_sampling
from tests.lossless.harness import models, requests, run, speculation

NEW = 40
ROWS = (  # early-exit and layer-skip run the target's own layers
    ("int8", "layer-skip+chain,length=4+threshold,gamma=0.2"),
    ("int4", "early-exit+chain,length=3"),
    pytest.param("int8", "early-exit+static,paths=0:1:2:00:01:10:000", marks=pytest.mark.soak),
    pytest.param("int4", "eagle+eagle2,total=12,depth=4,width=3", marks=pytest.mark.soak),
)


@pytest.fixture(scope="module")
def floats():
    return models(vocab_size=23)


@pytest.mark.parametrize(("how", "method"), ROWS)
def test_equals_its_own_plain_decoding(how: str, method: str, floats):
    target = dataclasses.replace(floats, target=quantized(floats.target, how))
    rng = np.random.default_rng(0)
    asked = requests([rng.integers(0, 23, size=n).tolist() for n in (1, 8, 13, 25)], NEW)
    plain, _ = run(speculation(parse_method("plain"), True), target, asked)
    texts, history = run(speculation(parse_method(method), True), target, asked)
    assert texts == plain
    assert history.accepted.sum() > 0, "no draft was accepted, so nothing was tested"
    assert {how, "int8"} <= {str(leaf.dtype) for leaf in module_to_dict(target.target).values()}


@pytest.mark.soak
def test_sampled_from_its_own_distribution():
    whole = models(test_sampling.VOCAB)
    target = dataclasses.replace(whole, target=quantized(whole.target, "int8"))
    joint = test_sampling.enumerate_joint(target, 0.7, 0.8)
    spec = speculation(parse_method("early-exit+static,paths=0:1:2:00:01:10:000"), False)
    counts = test_sampling.sample(spec, target, 0.7, 0.8)
    assert test_sampling.p_value(counts, joint) > test_sampling.FALSE_ALARM
