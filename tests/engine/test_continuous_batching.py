"""More prompts than rows: every text is as it is alone, and rows do not idle while prompts wait."""

import contextlib
import dataclasses
import json
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import Engine
from jaxspec.decoding import batch
from jaxspec.decoding.batch import start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.engine.continuous_batching import PrefillQueue, decode
from jaxspec.engine.generation import Generation
from jaxspec.engine.program import Program
from jaxspec.engine.requests import requests_of
from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.methods.method import parse_method
from tests import several_devices
from tests.lossless import harness

METHOD = "draft-model+chain,length=3"
PROMPTS = ["abcabc", "the first of the two", "x", "yes " * 20, "abcabcabcabc", "a b c d", "zz", "again and again"]
BUDGETS = [30, 3, 17, 24, 1, 40, 9, 25]


def results(queue: PrefillQueue) -> dict[int, Generation]:
    """By request, the result of a whole session."""
    return dict(pair for ended in decode(queue, StopStrings((), queue.session.model.tokenizer)) for pair in ended)


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model, METHOD)


@pytest.fixture(scope="module")
def alone(engine):
    return engine.generate(PROMPTS, max_new_tokens=BUDGETS, batch_size=1, record=True, log_probs=True)


@pytest.mark.parametrize("order", [range(8), range(7, -1, -1), (3, 0, 6, 1, 7, 4, 2, 5)])
def test_each_is_as_alone_whatever_the_order(order, engine, alone):
    found = engine.generate(
        [PROMPTS[i] for i in order],
        max_new_tokens=[BUDGETS[i] for i in order],
        batch_size=2,
        record=True,
        log_probs=True,
    )
    for i, one in zip(order, found, strict=True):
        assert one.tokens == alone[i].tokens
        assert np.array_equal(one.history.committed, alone[i].history.committed)
        assert [r.committed for r in one.rounds] == [r.committed for r in alone[i].rounds]
        assert [r.token.tolist() for r in one.rounds] == [r.token.tolist() for r in alone[i].rounds]
        np.testing.assert_allclose(one.log_probs, alone[i].log_probs, rtol=1e-4, atol=1e-4)
        assert one.finish_reason == alone[i].finish_reason
        assert one.prefill_seconds > 0 and one.decode_seconds >= 0


@pytest.mark.soak  # `tests/lossless/test_sampling.py` has seeds in any batch
def test_sampled_texts_do_not_depend_on_the_rows(engine):
    settings = {"max_new_tokens": BUDGETS, "temperature": [1.0, 0.0, 0.7, 1.3] * 2, "top_k": [0, 5] * 4, "seed": 4}
    one, several = (engine.generate(PROMPTS, **settings, batch_size=size) for size in (1, 3))
    assert [each.tokens for each in one] == [each.tokens for each in several]


def test_prompts_that_fill_their_chunks_and_the_clock_of_their_row(model, engine):
    """Read ahead in chunks of 64 and of 32 tokens. One row decodes all texts, one after another."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 259, size=size).tolist() for size in (5, 32, 64, 33)]
    requests = requests_of(model, prompts, max_new_tokens=[4, 9, 7, 12], temperature=1.0, seed=1)
    program = engine.program(requests)
    session = Session(model, program, requests[:1], later=requests[1:])
    queue = PrefillQueue(session)
    assert queue.chunks == (64, 32)
    began = time.perf_counter()
    found = results(queue)
    took = time.perf_counter() - began
    for place, together in enumerate(engine.run(requests)):
        assert found[place].tokens == together.tokens
        assert found[place].history.committed.tolist() == together.history.committed.tolist()
    assert sum(len(each.history.committed) for each in found.values()) == session.round
    assert sum(each.decode_seconds for each in found.values()) == pytest.approx(session.decode_seconds)
    later = [each for place, each in found.items() if place]
    assert all(each.prefill_seconds > 0 for each in later) and sum(each.prefill_seconds for each in later) < took


@pytest.mark.parametrize("keeps", [False, True])
def test_a_refilled_row_is_the_new_text_whole(keeps: bool):
    """With zeros after it; of the old one only rounds and, if that is wanted, the controller's state stay. So too with
    64-bit types."""
    known = harness.models(vocab_size=23)
    spec = harness.speculation(parse_method("edd,history=3+chain,length=3+cali-ts"), greedy=False)
    spec = dataclasses.replace(spec, log_probs=True, record=True)
    rng = np.random.default_rng(0)

    def filled(count: int, rows: int) -> DecodeState:
        asked = harness.requests([[1, 2]] * count, 9, top_k=3, top_p=0.5, temperature=0.7)
        state = start(spec, harness.weights(spec, known), asked, (), rows)

        def fill(leaf: jax.Array) -> jax.Array:
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.split(jax.random.key(int(rng.integers(99))), leaf.shape)
            return jnp.asarray(rng.integers(1, 99, leaf.shape)).astype(leaf.dtype)

        return jax.tree.map(fill, state)

    def numbers(tree: Any) -> Any:
        is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.tree.map(lambda leaf: np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)

    old, new = filled(4, 64), filled(1, 32)
    if keeps:
        new = dataclasses.replace(new, controller=None)
    before, fresh = numbers(old), numbers(new)
    with jax.enable_x64(keeps):
        after = numbers(batch.insert(old, new, np.array([2], np.int32), np.array([True])))
    stays = {"eos", "round", "history", "trace", *["controller"] * keeps}
    for field in dataclasses.fields(after):
        found, was = (jax.tree.leaves(getattr(state, field.name)) for state in (after, before))
        if field.name in stays:
            assert all(map(np.array_equal, found, was)), field.name
            continue
        for leaf, earlier, given in zip(found, was, jax.tree.leaves(getattr(fresh, field.name)), strict=True):
            room = [(0, most - length) for most, length in zip(leaf.shape[1:], given.shape[1:], strict=True)]
            np.testing.assert_array_equal(leaf[2], np.pad(given[0], room) if room else given[0], field.name)
            np.testing.assert_array_equal(np.delete(leaf, 2, 0), np.delete(earlier, 2, 0), field.name)


def test_results_come_as_they_are_done(engine, alone):
    order, settings = [], {"max_new_tokens": BUDGETS, "batch_size": 2, "record": True, "log_probs": True}
    for place, result in engine.generate_iter(PROMPTS, **settings):
        order.append(place)
        assert result.tokens == alone[place].tokens
    assert sorted(order) == list(range(len(PROMPTS)))
    assert order.index(1) < order.index(0), "a short text waited for a long one"


def test_stop_strings(engine, alone):
    settings = {"max_new_tokens": BUDGETS, "stop": [alone[0].text[3:5]], "record": True, "log_probs": True}
    one, several = (engine.generate(PROMPTS, **settings, batch_size=size) for size in (1, 2))
    assert [each.text for each in several] == [each.text for each in one]
    assert several[0].finish_reason == "stop"


def test_the_cache_grows_while_rows_are_refilled(model):
    """And a text's rounds are found where the columns of the history have been used several times."""
    budgets = [9, 12, 170, 172, 150, 140, 10, 160]  # the fourth is of the longest prompt
    engine = Engine(model, "ngram+chain,length=3")
    expected = engine.generate(PROMPTS, max_new_tokens=budgets, batch_size=1) * 3
    prompts, budgets = PROMPTS * 3, budgets * 3
    requests = requests_of(model, prompts, max_new_tokens=budgets)
    program = engine.program(requests)
    brief = requests_of(model, prompts, max_new_tokens=5)  # with no room for the longer texts
    session = Session(model, program, requests[:2], later=brief)
    session.requests, before = requests, session.cache_len
    found = results(PrefillQueue(session))
    assert session.cache_len > before
    for place, alone in enumerate(expected):
        assert found[place].tokens == alone.tokens
        assert np.array_equal(found[place].history.committed, alone.history.committed)
    assert session.round > session.cache_len, "no column was used twice"


@pytest.mark.parametrize(
    ("rows", "method", "longest"), [pytest.param(8, METHOD, 60, marks=pytest.mark.soak), (4, "plain", 150)]
)
def test_no_row_idles_while_prompts_wait(rows: int, method: str, longest: int, model, monkeypatch):
    """At most 3 % of row-rounds; and all rounds are at most 1.05 of those of handing rows on without delay."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, 200, size=n).tolist() for n in rng.integers(3, longest, size=40)]
    requests = requests_of(model, prompts, max_new_tokens=rng.integers(12, 120, size=40).tolist())
    engine = Engine(model, method)
    program = engine.program(requests)
    session = Session(model, program, requests[:rows], later=requests[rows:])
    queue = PrefillQueue(session)
    idle, waiting_rounds, advance = 0, 0, session.advance

    def watched(*given, **named):
        nonlocal idle, waiting_rounds
        before, waits, free = session.round, queue.pending, rows - len(session.texts)
        advance(*given, **named)
        if waits:
            waiting_rounds += rows * (session.round - before)
            idle += free * (session.round - before)

    monkeypatch.setattr(session, "advance", watched)
    found = results(queue)
    assert idle <= 0.03 * waiting_rounds
    free = [0] * rows
    for place in range(40):  # list scheduling in order of arrival
        first = int(np.argmin(free))
        free[first] += len(found[place].history.committed)
    assert session.round <= 1.05 * max(free)


def test_one_admission_stalls_the_others_for_a_chunk_beside_each_round(model, monkeypatch):
    """Counted, not timed: a long prompt is read while others decode, in chunks that are worth about two rounds."""
    long = np.random.default_rng(3).integers(1, 200, size=150).tolist()
    requests = requests_of(model, [*PROMPTS[:4], long], max_new_tokens=[3, 60, 60, 60, 9])
    engine, rows = Engine(model, "plain"), 4
    program = engine.program(requests)
    session = Session(model, program, requests[:rows], later=requests[rows:])
    queue = PrefillQueue(session)
    chunks, beside, read, reading = [], [], Program.read, queue.reading

    def watched_read(self, state, chunk, begin, end):
        chunks.extend([chunk] * len(range(begin, min(end, len(long)), chunk)))
        return read(self, state, chunk, begin, end)

    @contextlib.contextmanager
    def watched():
        chunks_before, rounds_before = len(chunks), session.round
        with reading():
            yield
        beside.append((chunks[chunks_before:], session.round - rounds_before))

    monkeypatch.setattr(Program, "read", watched_read)
    monkeypatch.setattr(queue, "reading", watched)
    found = results(queue)
    while_reading = [each for each in beside if each[0]]
    assert while_reading[:-1] == [([32], 1)] * 4  # 150 tokens are five chunks, each beside one round
    assert while_reading[-1][0] == [32]
    (alone,) = engine.generate([long], max_new_tokens=9)
    assert found[4].tokens == alone.tokens


def test_a_row_is_handed_on_without_a_copy_of_the_cache(model, engine):
    requests = requests_of(model, PROMPTS[:2], max_new_tokens=20)
    program = engine.program(requests)
    session = Session(model, program, requests)
    with model.context():
        fresh = program.start(requests[:1], (), 64)
        given = (session.state, fresh, np.zeros(1, np.int32), np.ones(1, bool))
        insert: Any = batch.insert  # a jitted function has methods that its type does not show
        text = insert.lower(*given).compile().as_text()
    for leaf in jax.tree.leaves(session.state.cache):
        shape = ",".join(map(str, leaf.shape))
        assert f"f32[{shape}]" in text
        assert re.findall(rf"= f32\[{shape}\]\S* (?:copy|gather|transpose|scatter)\(.*", text) == []


@pytest.mark.soak
def test_on_meshes():
    """Rows along `data`: each part of the batch has its own prompt ready, and all texts are as on one device."""
    found = json.loads(several_devices.output("-m", "tests.engine.continuous_batching_on_meshes"))
    assert found == {"2x2x2": True, "4x1x1": True}
