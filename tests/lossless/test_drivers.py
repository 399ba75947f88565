"""Unequal ends, full caches and growth together: every driver gives each request the text that it has alone.

The drafter is the target itself, so nearly all drafts are accepted: rounds end in the last columns of a cache.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from jaxspec import Engine, load
from jaxspec.decoding import prefill_buckets
from jaxspec.decoding.request import Request
from jaxspec.engine import scoring
from jaxspec.engine.generation import Generation
from jaxspec.engine.requests import requests_of
from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import StopStrings
from tests import checkpoints

DEPTH = 4
# (prompt tokens, new tokens): with prefill's token and whole rounds all but the first end 2, 3 and 4 columns before
# the end of a cache of 64 columns, while the first goes on.
SIZES = ((9, 70), (31, 31), (31, 30), (26, 34))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(checkpoints.make(tmp_path_factory.mktemp("drivers")))


@pytest.fixture(scope="module")
def engine(model) -> Engine:
    return Engine(model, f"draft-model+chain,length={DEPTH}", draft=model.target)


@pytest.fixture(scope="module")
def asked(model) -> list[Request]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 259, size=size).tolist() for size, _ in SIZES]
    return requests_of(model, prompts, max_new_tokens=[new for _, new in SIZES], temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def ample(engine, asked) -> list[Generation]:
    """Decoded in a cache in which no text comes near the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefill_buckets, "SMALLEST_CACHE", 128)
        found = engine.run(asked, log_probs=True)
    assert [len(each.tokens) for each in found] == [new for _, new in SIZES]
    assert all(each.statistics.tau > 0.9 * (DEPTH + 1) for each in found), "few drafts were accepted"
    return found


@pytest.fixture
def rows(monkeypatch) -> Iterator[list[int]]:
    """Length of the cache after each call of the loop; the first cache is small."""
    monkeypatch.setattr(prefill_buckets, "FIRST_STAGE", 24)
    seen, advance = [], Session.advance

    def watched(session: Session, *given, **named) -> None:
        advance(session, *given, **named)
        seen.append(session.cache_len)

    monkeypatch.setattr(Session, "advance", watched)
    yield seen
    assert seen[0] == 64 and seen[-1] > seen[0], "the cache did not grow"


def same(found: list[Generation], expected: list[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.log_probs is None or one.log_probs == pytest.approx(other.log_probs, abs=1e-3)


def test_run(engine, asked, ample, rows):
    same(engine.run(asked, log_probs=True), ample)
    assert set(rows) == {64, 128}


def test_run_with_stop_strings(engine, asked, ample, rows):
    """Rows whose text was ended from outside stay beside those that go on."""
    stop = ample[1].text[-3:]
    stops = StopStrings([stop], engine.model.tokenizer)
    expected = [stops.cut(each.tokens, each.prompt_tokens)[1] for each in ample]
    assert sum(len(text) < len(each.text) for text, each in zip(expected, ample, strict=True)) > 0
    assert [each.text for each in engine.run(asked, stops=stops, log_probs=True)] == expected


def test_rows_of_continuous_batching(engine, asked, ample, rows):
    """`generate` and `generate_iter`, whose results come in any order."""
    found = dict(engine.decode([*asked, *asked[:3]], 4, log_probs=True))
    same([found[place] for place in range(len(found))], [*ample, *ample[:3]])


def test_stream(engine, asked, ample, rows):
    """A prompt alone in its call has index 0, as the first of several."""
    given = {"max_new_tokens": SIZES[0][1], "temperature": 1.0, "seed": 5}
    assert "".join(engine.stream(asked[0].tokens, rounds=3, **given)) == ample[0].text


def test_scores_are_the_log_probs_of_decoding(engine, ample):
    texts = [(each.prompt_tokens, each.tokens) for each in ample]
    for place, score in scoring.scores(engine.model, texts, 3):
        assert score.log_prob == pytest.approx(ample[place].log_probs.sum(), abs=2e-3)
