"""`jaxspec-train medusa`: its loss by hand, its logits against those of decoding, and its memory."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import decode
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.methods.method import parse_method
from jaxspec.model.llama import Llama
from jaxspec.train.data.text import Windows
from jaxspec.train.methods import medusa
from jaxspec.train.run.packed import hidden_states
from tests.lossless.harness import begun, medusa_heads, models, requests
from tests.train.command import trained
from tests.train.windows import shape, two_windows

CONFIG = shape(1)
LENGTH = 11  # no multiple of the number of heads


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(CONFIG, rngs=nnx.Rngs(0))


def shaken(target: Llama, count: int) -> MedusaHeads:
    noise = MedusaHeads(8, 13, rngs=nnx.Rngs(1), heads=count)
    return jax.tree.map(lambda x, y: x + 0.5 * y, medusa.initial(target, count), noise)


def batch() -> Windows:
    return two_windows(6, 5, 13)


def known(target: Llama, windows: Windows) -> jax.Array:
    """The target's features."""
    return hidden_states(target, jnp.asarray(windows.tokens), jnp.asarray(windows.segment))


def test_loss_is_the_papers(target: Llama):
    """Head after head, position after position; what lies in another document is no goal."""
    count, decay = 3, 0.5
    windows, heads = batch(), shaken(target, count)
    features = np.asarray(known(target, windows))
    total, number, right = 0.0, 0, 0
    for k, (row, i) in ((k, at) for k in range(count) for at in np.ndindex(2, LENGTH)):
        goal = i + k + 2
        if goal >= LENGTH or windows.segment[row, goal] != windows.segment[row, i] or not windows.counted[row, goal]:
            continue
        logits = np.asarray(heads.heads[k](jnp.asarray(features[row, i]))[0], np.float64)
        log_probs = logits - np.log(np.exp(logits).sum())
        total -= decay**k * log_probs[windows.tokens[row, goal]]
        number += k == 0
        right += k == 0 and int(logits.argmax()) == int(windows.tokens[row, goal])
    found, sums = jax.jit(partial(medusa.loss, decay=decay))(heads, target, windows, None)
    assert float(found) == pytest.approx(total, rel=1e-5)
    assert (float(sums["count"]), float(sums["agreement"])) == (number, right)


@pytest.mark.parametrize("tied", [False, True])
def test_heads_begin_as_the_lm_head(tied: bool):
    target = Llama(dataclasses.replace(CONFIG, tie_embeddings=tied), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (4, 8))
    for head in medusa.initial(target, 2).heads:
        np.testing.assert_array_equal(head(x)[0], target.logits(x))


def test_trains_what_decodes():
    """Each level of every round's draft is, with its probability, what training computes for its head."""
    target = models(50).target
    heads = medusa_heads(target)
    weights = Models(target=target, draft=heads)
    spec = parse_method("medusa+chain,length=4").speculation(True, record=True)
    state = begun(spec, weights, requests([[1, 2, 3, 4, 5, 6, 7, 8, 9, 3]], 30), (), 64)
    state = decode(spec, weights, state, jnp.int32(64))
    rounds, trace = int(state.round), state.trace
    assert trace is not None and rounds > 5
    features = hidden_states(target, state.tokens, jnp.zeros(state.tokens.shape, jnp.int32))[0]
    logs = [jax.nn.log_softmax(head(features)[0]) for head in heads.heads]
    at = 9  # the last position of the prompt, which gave the first round's root
    for each in range(rounds):
        path = 0.0
        for level, log in enumerate(logs, 1):
            drafted = int(trace.token[0, each, level])
            assert drafted == int(log[at].argmax())
            path += float(log[at, drafted])
            np.testing.assert_allclose(trace.log_confidence[0, each, level], path, atol=1e-4)
        assert trace.live[0, each].tolist() == [True] * 4 + [False]  # three heads, so three levels
        at += int(state.history.committed[0, each])


def test_logits_of_all_heads_are_never_alive_together():
    """A step with five heads needs no more memory than one with one head, gradients and weights apart."""
    wide = dataclasses.replace(CONFIG, vocab_size=4096)
    target = Llama(wide, rngs=nnx.Rngs(0))
    tokens = jnp.zeros((4, 100), jnp.int32)
    windows = Windows(tokens=tokens, segment=tokens, counted=jnp.ones((4, 100), bool), features=jnp.zeros((4, 100, 8)))

    def needed(count: int) -> int:
        step = jax.jit(jax.value_and_grad(partial(medusa.loss, decay=0.8), has_aux=True))
        memory = step.lower(medusa.initial(target, count), target, windows, None).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    logits, weights = 4 * 100 * 4096 * 4, 5 * 8 * 4096 * 4
    assert needed(1) > logits, "the logits are not seen, so nothing is tested"
    assert needed(5) < needed(1) + 2 * weights


def test_heads_are_trained_measured_and_used(ckpt: Path, data: Path, tmp_path: Path):
    options = ("--data", data, "--heads", 3, "--cache-features", tmp_path / "features")
    engine, lines = trained("medusa", ckpt, *options)
    assert lines[-1]["evaluation"]["tau"] >= 1 and len(lines[-1]["evaluation"]["acceptance"]) <= 3
    assert isinstance(engine.method.drafter, Medusa) and len(engine.models.draft.heads) == 3
