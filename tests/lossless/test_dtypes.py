"""Lossless in every dtype: greedy text is plain decoding's, but for near-ties that the measured noise explains.

There are no more of them than plain decoding has against itself, alone and in a batch. Sampled text has the
distribution of the target in its dtype, by exact enumeration. float32 without quantised weights is the rest of the
battery, where texts are equal. Quantised targets compute in bfloat16, and heads have the dtype of that.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.evaluate import divergence
from jaxspec.methods.method import parse_method
from jaxspec.model.quantization import KINDS, is_quantized, quantized
from jaxspec.verify.verdict import more_often
from tests.lossless import combinations
from tests.lossless.distribution import FALSE_ALARM, VOCAB, p_value
from tests.lossless.harness import models, requests, run, speculation

DTYPES = ("bfloat16", "float16", *KINDS)
PROMPTS, NEW = 16, 60
SIZES = (4, 12)  # nodes of a small and a large tree


@functools.cache
def models_in(kind: str, vocab_size: int, num_layers: int) -> Models:
    """The harness's models, whose target, heads and predictor have another dtype."""
    dtype, floats = jnp.dtype("bfloat16" if kind in KINDS else kind), models(vocab_size, num_layers)
    cast = lambda module: jax.tree.map(lambda x: x.astype(dtype), module)
    target = cast(floats.target)
    if kind in KINDS:
        kernels = {name: x for name, x in module_to_dict(quantized(floats.target, kind)).items() if is_quantized(name)}
        whole = quantized(target, kind)
        target = dict_to_module(whole, module_to_dict(whole) | kernels)
    heads = {drafter: cast(head) for drafter, head in floats.draft.items()}
    return Models(target=target, draft=heads, control=cast(floats.control))


@dataclasses.dataclass(frozen=True)
class Reference:
    """Plain decoding in a batch, how it differs from itself alone, and the noise of the logits."""

    asked: list[Request]
    texts: list[list[int]]
    noise: float
    flips: int
    tokens: int


@functools.cache
def reference(kind: str) -> Reference:
    """The noise may be 0: of so few products of bfloat16 numbers, float32 holds the sum exactly, in any order."""
    known, spec = models_in(kind, 23, 2), speculation(parse_method("plain"), True)
    draw = np.random.default_rng(0)
    asked = requests([draw.integers(0, 23, draw.integers(1, 25)).tolist() for _ in range(PROMPTS)], NEW)
    texts, _ = run(spec, known, asked)
    pairs = [(request.tokens, text) for request, text in zip(asked, texts, strict=True)]
    target = known.target
    noise = max(divergence.noise(target, [pairs], SIZES), divergence.batch_noise(target, pairs[:4]))
    assert noise < 0.2
    alone = [run(spec, known, [request])[0][0] for request in asked]
    return Reference(asked, texts, noise, *flips_of(known, asked, texts, alone, noise))


def flips_of(
    known: Models, asked: Sequence[Request], expected: Sequence[list[int]], texts: Sequence[list[int]], noise: float
) -> tuple[int, int]:
    """The number of texts that differ, each by a near-tie, and of tokens up to there."""
    flips = tokens = 0
    for i, (request, one, other) in enumerate(zip(asked, expected, texts, strict=True)):
        apart = divergence.diverges(known.target, i, 0, (request.tokens, one), other)
        assert apart is None or apart.explained(noise), apart
        flips, tokens = flips + (apart is not None), tokens + (len(one) if apart is None else apart.position + 1)
    return flips, tokens


def rows() -> list[Any]:
    """Every method in every dtype; those outside a set that has each part once in each dtype only with --soak."""
    usual, few = [row for row in combinations.methods() if row[1] not in combinations.SETTINGS], set[tuple[str, ...]]()
    for i, kind in enumerate(DTYPES):  # of each dtype other methods
        few |= {(kind, *row) for row in combinations.covering(usual[i :: len(DTYPES)], 1)}
    every = [(kind, *row) for kind, row in itertools.product(DTYPES, combinations.methods())]
    mark = lambda row: () if row in few else pytest.mark.soak
    return [pytest.param(row[0], "+".join(row[1:]), marks=mark(row), id="+".join(row)) for row in every]


@pytest.mark.parametrize(("kind", "method"), rows())
def test_greedy_text_differs_by_near_ties_only(kind: str, method: str):
    known, plain = models_in(kind, 23, 2), reference(kind)
    texts, history = run(speculation(parse_method(method), True), known, plain.asked)
    assert history.accepted.sum() > 0
    found = flips_of(known, plain.asked, plain.texts, texts, plain.noise)
    p_value = more_often(*found, plain.flips, plain.tokens)
    assert p_value is not None and p_value > FALSE_ALARM


def sampled() -> list[Any]:
    """Methods with either rule in every dtype; those outside a set that has each pair of columns only with --soak."""
    builders = ("chain,length=4", "uniform,width=2,depth=3,total=8")
    every = list(itertools.product(DTYPES, ("draft-model", "eagle", "edd", "layer-skip"), builders))
    few = combinations.covering(every, 2)
    return [pytest.param(row[0], "+".join(row[1:]), marks=() if row in few else pytest.mark.soak) for row in every]


@pytest.mark.parametrize(("kind", "method"), sampled())
def test_sampled_text_has_the_targets_distribution(kind: str, method: str):
    assert p_value(speculation(parse_method(method), False), models_in(kind, VOCAB, 1), 0.7, 0.8) > FALSE_ALARM


def test_the_same_text_with_64_bit_types():
    """With `jax_enable_x64` the noise is float32 too."""
    known, spec = models(23), speculation(parse_method("draft-model+chain,length=4+beta-ts,prior_alpha=1"), False)
    asked = requests([[1, 2, 3], [4]], 20, temperature=1.0)
    texts, _ = run(spec, known, asked)
    with jax.enable_x64(True):
        assert run(spec, known, asked)[0] == texts
