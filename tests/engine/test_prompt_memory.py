"""The cache of a conversation: earlier tokens are not prefilled again, and the text is the same."""

import numpy as np
import pytest

import jaxspec
from jaxspec.engine.finished_text import text_of_row
from jaxspec.engine.prompt_memory import PromptMemory
from jaxspec.engine.requests import requests_of
from jaxspec.engine.stop_strings import StopStrings
from tests import checkpoints

NEW = 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return jaxspec.Engine(checkpoints.make(tmp_path_factory.mktemp("memory")), "draft-model+chain,length=2")


def continued(engine, prompt, memory):
    (request,) = requests_of(engine.model, [prompt], max_new_tokens=NEW)
    session = engine.session([request], memory=memory)
    session.advance()
    return text_of_row(session, 0, StopStrings((), engine.model.tokenizer)).tokens


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
