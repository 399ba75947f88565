"""A common beginning of prompts is prefilled once; texts and rounds are those without sharing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec import Engine
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding import prefill
from jaxspec.engine import continuous_batching, prefix_cache
from jaxspec.engine.generation import Generation
from jaxspec.engine.program import Program
from jaxspec.methods.method import parse_method
from tests.lossless import combinations, harness

CHUNK = 128  # what a CPU reads at once of such prompts
EXAMPLES, QUESTIONS, SAMPLES = 300, 3, 3
rng = np.random.default_rng(0)
BEGINNING = rng.integers(0, 23, size=EXAMPLES).tolist()
PROMPTS = [
    [*BEGINNING, *question]
    for question in [rng.integers(0, 23, size=n).tolist() for n in (9, 140, 60)]
    for _ in range(SAMPLES)
]
ORDERS = {
    "samples": PROMPTS,
    "questions": PROMPTS[::SAMPLES] * SAMPLES,
    "another between": [*PROMPTS[:4], BEGINNING[1:], *PROMPTS[4:7], BEGINNING[:5]],
}


@pytest.fixture(scope="module")
def models():
    return harness.models(vocab_size=23, max_length=1024)


def engine(name: str, models: Any) -> Engine:
    method = parse_method(name)
    config = CheckpointConfig("llama", models.target.config, "float32", "float32", "jaxspec")
    model = Checkpoint(Path("none"), config, models.target, tokenizer=None, heads=())
    return Engine(model, method, draft=models.draft.get(type(method.drafter), ()), control=models.control)


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """Tokens of each call that reads prompts ahead."""
    found, whole = [], Program.read

    def counted(program: Program, state: Any, chunk: int, begin: int, end: int) -> Any:
        found.append(end - begin)
        return whole(program, state, chunk, begin, end)

    monkeypatch.setattr(Program, "read", counted)
    return found


def both(one: Engine, prompts: list[list[int]], monkeypatch: Any, **settings: Any) -> list[list[Generation]]:
    """With nothing shared, and with."""
    settings = {"max_new_tokens": [5, 20, 11] * 3, "batch_size": 1, "record": True, **settings}
    with monkeypatch.context() as patch:
        patch.setattr(continuous_batching, "worth_keeping", lambda *given: [])
        alone = one.generate(prompts, **settings)
    return [alone, one.generate(prompts, **settings)]


def seen(found: Generation) -> tuple[Any, ...]:
    """Tokens and history of a text."""
    assert found.rounds is not None
    return found.tokens, [(each.token.tolist(), each.committed) for each in found.rounds]


USUAL = {("eagle", 0.0), ("dflash", 1.0), ("edd", 1.0)}  # a cache of features, one of context keys, and the target's
CASES = [
    pytest.param(name, temperature, marks=() if (name, temperature) in USUAL else pytest.mark.soak)
    for name in combinations.DRAFTERS
    for temperature in (0.0, 1.0)
]


@pytest.mark.parametrize(("drafter", "temperature"), CASES)
def test_texts_and_rounds_are_the_same(drafter: str, temperature: float, models, monkeypatch, read):
    one = engine(f"{drafter}+chain,length=3", models)
    alone, sharing = both(one, PROMPTS, monkeypatch, temperature=temperature)
    assert [seen(found) for found in sharing] == [seen(found) for found in alone]
    assert sum(read[len(read) // 2 :]) < sum(read), "nothing was shared"


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_read(order: str, models, monkeypatch, read):
    """Whole chunks that the prompts before have in common are not read again, nor is any program compiled."""
    one, prompts = engine("eagle+chain,length=3", models), ORDERS[order]
    reads: Any = prefill.run_group  # a jitted function has methods that its type does not show
    whole = sum(-(-len(prompt) // CHUNK) * CHUNK for prompt in prompts[1:])
    with monkeypatch.context() as patch:
        patch.setattr(continuous_batching, "worth_keeping", lambda *given: [])
        one.generate(prompts, max_new_tokens=4, batch_size=1)
    assert whole - CHUNK * len(prompts) < sum(read) <= whole
    before, programs = sum(read), reads._cache_size()
    one.generate(prompts, max_new_tokens=4, batch_size=1)
    assert reads._cache_size() == programs
    saved = {
        # The first question was read with the batch: of its other samples one is read whole, and one goes on from it.
        # Of the others' the first goes on from what all begin with, and two from what they have in common.
        "samples": 256 + (256 + 2 * 384) + (256 + 2 * 256),
        "questions": 7 * 256,
        "another between": 3 * 256 + 384,  # after which the second question is read from its beginning once
    }
    assert before - (sum(read) - before) == saved[order]


def test_rows_beside_each_other(models, monkeypatch):
    """More rows change no text; the batch's first prompts are read at once, the others go on from what is shared."""
    alone, sharing = both(engine("edd+chain,length=3", models), PROMPTS, monkeypatch, batch_size=3)
    assert [seen(found) for found in sharing] == [seen(found) for found in alone]


def test_prompts_that_end_or_part_at_a_chunks_edge(models, monkeypatch, read):
    """EAGLE reads the token after a chunk too, so what two prompts share must reach a token further."""
    whole = np.random.default_rng(2).integers(0, 22, size=400).tolist()
    parted = lambda at: [*whole[:at], whole[at] + 1, *whole[:3]]
    prompts = [whole[:256], whole[:256], whole[:257], parted(256), parted(255), parted(128), whole[:129], whole[:128]]
    given = {"temperature": 1.0, "max_new_tokens": 6}
    alone, sharing = both(engine("eagle+chain,length=3", models), prompts, monkeypatch, **given)
    assert [seen(found) for found in sharing] == [seen(found) for found in alone]
    half = len(read) // 2
    assert sum(read[half:]) < sum(read[:half]), "nothing was shared"


@given(st.integers(1, 3), *[st.lists(st.integers(0, 1), min_size=1, max_size=8)] * 2)
def test_what_two_prompts_share(chunk: int, one: list[int], other: list[int]):
    ends = [end for end in range(0, 9, chunk) if end < min(len(one), len(other)) and one[: end + 1] == other[: end + 1]]
    assert prefix_cache.shared(one, other, chunk) == max(ends, default=0)


@pytest.mark.parametrize(
    ("prompts", "waiting", "expected"),
    [
        ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5]], [4]),
        ([[1, 2, 3, 4]], [[1, 2, 3, 4]], [2]),  # the token after a chunk must be there, and the last is drawn after
        ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 6]], [2]),
        ([[1, 2, 3, 4, 5]], [[1, 2, 4, 4, 5]], []),
        ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3]], [4, 2]),
        ([[1, 2, 3, 4, 5]], [[1, 2, 3], [1, 2, 3, 4, 5]], [2]),
        ([[1, 2, 3, 4, 5], [1, 2, 3, 5, 5]], [[1, 2, 3, 4, 5]], [2]),
        ([[1, 2, 3, 4, 5, 6, 7]], [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5], [1, 2, 3]], [6, 4]),
        ([[1, 2, 3]], [], []),
    ],
)
def test_where_to_keep(prompts, waiting, expected):
    assert prefix_cache.worth_keeping(prompts, waiting, 2) == expected
