"""The cache of a conversation: earlier tokens are not prefilled again, and the text is the same."""

import numpy as np
import pytest

import jaxspec
from jaxspec.engine.generation import text_of_row
from jaxspec.engine.prefix_cache import PromptMemory
from jaxspec.engine.requests import requests_of
from jaxspec.engine.stop_strings import StopStrings
from tests.engine import test_shared_prefix
from tests.lossless import harness

NEW = 12


@pytest.fixture(scope="module")
def engine(model):
    return jaxspec.Engine(model, "draft-model+chain,length=2")


def continued(engine, prompt, memory):
    (request,) = requests_of(engine.model, [prompt], max_new_tokens=NEW)
    session = engine.session([request], memory=memory)
    session.advance()
    return text_of_row(session, 0, StopStrings((), engine.model.tokenizer)).tokens


def test_prompts_that_end_or_part_at_a_chunks_edge():
    """Tokens and drafts; a chunk is reused only if the token after it, which EAGLE reads too, is the same."""
    engine = test_shared_prefix.engine("eagle+chain,length=3", harness.models(vocab_size=23, max_length=1024))
    whole, memory, reused = np.random.default_rng(0).integers(0, 22, size=400).tolist(), PromptMemory(), []
    parted = [*whole[:128], whole[128] + 1, *whole[:11]]
    longer = [*parted, *whole[150:267]]  # 257 tokens
    for prompt in (whole[:128], whole[:129], parted, longer, [*longer[:256], longer[256] + 1], longer[:256]):
        found = []
        for kept in (memory, None):
            (request,) = requests_of(engine.model, [prompt], max_new_tokens=5, temperature=1.0)
            session = engine.session([request], memory=kept, record=True)
            session.advance()
            text = text_of_row(session, 0, StopStrings((), None))
            found.append((text.tokens, [each.token.tolist() for each in text.rounds or []]))
        assert found[0] == found[1] and len(found[0][0]) == 5
        reused.append(memory.reused)
    assert reused == [0, 0, 0, 128, 0, 0]


def test_each_turn_reads_what_is_new(engine):
    """Prompts that grow as a conversation does, past the first cache, and one that begins otherwise."""
    draw, memory, reused = np.random.default_rng(0), PromptMemory(), []
    prompt: list[int] = []
    for length in (40, 30, 20, 10, 50):
        prompt = [*prompt, *draw.integers(3, 259, length).tolist()]
        found = continued(engine, prompt, memory)
        assert found == engine.generate([prompt], max_new_tokens=NEW)[0].tokens
        reused.append(memory.reused)
        prompt = [*prompt, *found]
    assert reused[0] == 0
    assert reused == sorted(reused)
    assert reused[-1] >= 64
    other = draw.integers(3, 259, 40).tolist()
    assert continued(engine, other, memory) == engine.generate([other], max_new_tokens=NEW)[0].tokens
    assert memory.reused == 0


def test_a_conversation_outgrows_the_caches_of_what_is_stored():
    engine = test_shared_prefix.engine("eagle+chain,length=3", harness.models(vocab_size=23, max_length=1024))
    whole, memory, rows = np.random.default_rng(0).integers(0, 22, size=600).tolist(), PromptMemory(), list[int]()
    for length, reused in ((200, 0), (600, 128)):
        (request,) = requests_of(engine.model, [whole[:length]], max_new_tokens=5)
        session = engine.session([request], memory=memory)
        session.advance()
        found = text_of_row(session, 0, StopStrings((), None)).tokens
        assert found == engine.generate([whole[:length]], max_new_tokens=5)[0].tokens
        assert memory.reused == reused
        rows.append(memory.cache_len)
    assert rows[0] < rows[1]
