"""Scores of given texts, against transformers and against what greedy decoding says."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jaxspec import Engine, load
from jaxspec.engine import scoring
from tests import checkpoints, several_devices
from tests.engine.scoring_on_meshes import texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scoring")
    checkpoints.make(path, layers=1)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load(folder / "ckpt")


@pytest.fixture(scope="module")
def oracle(folder):
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)

    def score(context: list[int], continuation: list[int]) -> scoring.Score:
        text = [*context, *continuation][
            -257:
        ]  # the positions of this model, and the last token, which is not supported
        with torch.no_grad():
            logits = reference(torch.tensor([text[:-1]])).logits[0, -len(continuation) :]
        given = torch.log_softmax(logits, -1)[torch.arange(len(continuation)), torch.tensor(continuation)]
        return scoring.Score(float(given.sum()), logits.argmax(-1).tolist() == continuation)

    return score


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_scores_are_those_of_transformers(batch_size, model, oracle):
    """Whatever stands beside a text, across chunks, and with the beginning of what is too long left out."""
    asked = texts()
    found = dict(scoring.scores(model, asked, batch_size))
    assert sorted(found) == list(range(len(asked)))
    for place, text in enumerate(asked):
        expected = oracle(*text)
        assert found[place].log_prob == pytest.approx(expected.log_prob, abs=1e-3)
        assert found[place].greedy == expected.greedy


def test_greedy_text_is_greedy(model):
    engine = Engine(model, "plain")
    (found,) = engine.generate("abcabc", max_new_tokens=20, log_probs=True)
    other = [*found.tokens[:-1], (found.tokens[-1] + 1) % 259]
    asked = [(found.prompt_tokens, found.tokens), (found.prompt_tokens, other), (found.prompt_tokens, other[:-1])]
    scored = dict(scoring.scores(model, asked, 2))
    assert [scored[place].greedy for place in range(3)] == [True, False, True]
    assert found.log_probs is not None
    assert scored[0].log_prob == pytest.approx(found.log_probs.sum(), abs=1e-4)
    assert scored[2].log_prob == pytest.approx(found.log_probs[:-1].sum(), abs=1e-4)


def test_choices_of_one_token_are_read_once(model, monkeypatch):
    read, score = [], scoring.score
    monkeypatch.setattr(
        scoring, "score", lambda target, tokens, *rest: read.append(tokens) or score(target, tokens, *rest)
    )
    context = list(range(10, 50))
    together = dict(scoring.scores(model, [(context, [letter]) for letter in range(4)], 8))
    assert [tokens.shape[0] for tokens in read] == [1]
    for letter in range(4):
        ((_, alone),) = scoring.scores(model, [(context, [letter])], 1)
        assert together[letter].log_prob == pytest.approx(alone.log_prob, abs=1e-5)
        assert together[letter].greedy == alone.greedy


@pytest.mark.parametrize("text", [([], [1]), ([1], []), ([1], [2] * 257)])
def test_what_has_no_score(text, model):
    with pytest.raises(ValueError, match="a score needs at least one token of each"):
        list(scoring.scores(model, [text], 1))


def test_no_texts(model):
    assert list(scoring.scores(model, [], 4)) == []


def test_few_programs(model):
    """Batches of any contents share a program, so long as their texts are about as long."""
    rng = np.random.default_rng(0)
    draw = lambda least, most: rng.integers(3, 259, size=int(rng.integers(least, most))).tolist()
    asked = [(draw(5, 20), draw(1, 10)) for _ in range(23)]
    score: Any = scoring.score  # a jitted function has methods that its type does not show
    before = score._cache_size()
    list(scoring.scores(model, asked, 7))
    assert score._cache_size() - before == 1


@pytest.mark.soak
def test_on_meshes():
    assert json.loads(several_devices.output("-m", "tests.engine.scoring_on_meshes")) is True
