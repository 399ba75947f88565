"""`keep_state`: what a controller has learnt goes on to the next prompts, a row each, and no greedy text changes."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from jaxspec import Engine, SamplingParams, load
from jaxspec.commands import generate
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.decoding.batch import restore_controller
from jaxspec.evaluate.runner import compilations
from jaxspec.options.by_command import Generate
from tests import checkpoints

PROMPTS = ["abcabc", "the first of the two", "x", "one two one two", "zz"]
METHOD = "ngram+beta-ts,prior_alpha=1"
SETTINGS: dict[str, Any] = {"max_new_tokens": 24}
PRIOR = (1.0, 1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(checkpoints.make(tmp_path_factory.mktemp("keep")))


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model, METHOD)


@pytest.fixture(scope="module")
def plain(model):
    return [g.tokens for g in Engine(model, "plain").generate(PROMPTS, **SETTINGS)]


def learnt(generation) -> tuple[float, float]:
    return generation.controller.alpha.item(), generation.controller.beta.item()


def gained(generation) -> np.ndarray:
    """What its rounds add to (alpha, beta)."""
    accepted, levels = generation.history.accepted, generation.history.levels
    return np.array([accepted.sum(), (np.minimum(accepted + 1, levels) - accepted).sum()])


def test_every_prompt_starts_from_the_prior_unless_asked(engine, plain):
    found = engine.generate(PROMPTS, **SETTINGS, batch_size=2)
    assert [g.tokens for g in found] == plain
    assert [learnt(g) for g in found] == [tuple(PRIOR + gained(g)) for g in found]


@pytest.mark.parametrize("size", [1, 2])  # the last batch of two is not full
def test_a_row_goes_on_from_the_row_of_the_batch_before(size: int, engine, plain):
    found = engine.generate(PROMPTS, **SETTINGS, batch_size=size, keep_state=True)
    assert [g.tokens for g in found] == plain
    for row in range(size):
        expected = np.array(PRIOR)
        for one in found[row::size]:
            expected = expected + gained(one)
            assert learnt(one) == tuple(expected)
    assert sum(expected) > sum(PRIOR) + 10


def test_rows_without_a_past_start_from_the_prior():
    fresh = BetaTS(prior_alpha=1.0).init(4)
    state = restore_controller(fresh, [None, [np.array(9.0), np.array(2.5)]])
    assert [leaf.tolist() for leaf in jax.tree.leaves(state)] == [[1, 9, 1, 1], [1, 2.5, 1, 1]]
    assert jax.tree.map(lambda x: (x.dtype, x.weak_type), state) == jax.tree.map(
        lambda x: (x.dtype, x.weak_type), fresh
    )


def test_it_compiles_no_other_program(engine):
    engine.generate(PROMPTS[:1] * 2, **SETTINGS, batch_size=1)
    with compilations() as compiled:
        engine.generate(PROMPTS[:1] * 2, **SETTINGS, batch_size=1, keep_state=True)
        engine.run(engine.requests(PROMPTS[:1], **SETTINGS), learnt=[None])
    assert compiled == []


def test_a_row_that_ends_at_a_stop_string_compiles_no_other_program(engine):
    requests = engine.requests(PROMPTS[:1] * 2, **SETTINGS)
    engine.run(requests)
    with compilations() as compiled:
        session = engine.session(requests)
        session.advance(1)
        session.stop([0])
        session.advance()
    assert compiled == []
    assert session.finished


def test_from_the_command_line(model, engine, tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    asked: Any = {"sampling": SamplingParams(max_new_tokens=24), "batch_size": 1, "dtype": "float32", "format": "json"}
    settings = Generate(model.path, METHOD, prompts=tmp_path / "prompts.jsonl", **asked)

    def rounds(**keep) -> list[int]:
        generate.run(dataclasses.replace(settings, **keep))
        return [json.loads(line)["rounds"] for line in capsys.readouterr().out.splitlines()]

    with_state = [g.statistics.rounds for g in engine.generate(PROMPTS, **SETTINGS, batch_size=1, keep_state=True)]
    assert rounds(keep_state=True) == with_state
    assert rounds() != with_state, "the state made no difference, so nothing was tested"
