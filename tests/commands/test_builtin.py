"""The builtin checkpoint is complete and small, and its methods work."""

import dataclasses
import json
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import jaxspec
from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.commands import demo, methods
from jaxspec.evaluate.questions import read_questions
from jaxspec.options.by_command import Demo, Methods
from tests.programs import run

MODEL, HEADS = 24, 32  # megabytes


@pytest.fixture(scope="module")
def model():
    return jaxspec.load("builtin")


def test_it_is_small_and_says_what_it_is(model):
    sizes = {path: path.stat().st_size / 10**6 for path in FOLDER.rglob("*") if path.is_file()}
    heads = sum(size for path, size in sizes.items() if FOLDER / "heads" in path.parents)
    assert heads < HEADS and sum(sizes.values()) - heads < MODEL
    assert model.heads == ("dflash", "eagle", "eagle3", "early-exit", "edd", "layer-skip", "medusa", "vdm")
    assert model.config.dtype == "bfloat16"
    assert model.config.model.max_length >= 512
    card = (FOLDER / "README.md").read_text()
    heads = ("eagle", "eagle3", "dflash", "early-exit", "calibrator", "edd", "medusa", "draft-model", "skip-search")
    commands = [f"jaxspec-train {name}" for name in ("lm", "generate", *heads)]
    millions = sum(leaf.size for leaf in jax.tree.leaves(model.target)) / 1e6
    for line in (*commands, f"{millions:.1f}M parameters", "--seed", "Python Software Foundation"):
        assert line in card


def test_its_prompts_are_of_as_many_files(model):
    questions = read_questions("builtin")
    assert len(questions) == len({question.category for question in questions}) == 40
    for question in questions:
        assert 32 < len(model.tokenizer.encode(question.turns[0])) < 384  # and 128 new ones fit


@pytest.fixture(scope="module")
def prompts():
    return [question.turns[0] for question in read_questions("builtin")[::10]]


@pytest.fixture(scope="module")
def plain(model, prompts):
    return jaxspec.Engine(model, "plain").generate(prompts, max_new_tokens=48)


@pytest.mark.parametrize(
    ("method", "tau"),
    [
        ("dflash", 1.9),
        pytest.param("early-exit+chain+cali-ts", 1.8, marks=pytest.mark.soak),
        pytest.param("eagle+chain", 1.7, marks=pytest.mark.soak),
        pytest.param("eagle3+chain", 1.6, marks=pytest.mark.soak),
        pytest.param("edd+chain", 1.7, marks=pytest.mark.soak),
        pytest.param("layer-skip+adaptive", 1.3, marks=pytest.mark.soak),
        pytest.param("medusa+chain", 1.2, marks=pytest.mark.soak),
        pytest.param("draft-model@vdm+chain", 1.7, marks=pytest.mark.soak),
    ],
)
def test_the_head_drafts_what_the_target_says(model, prompts, plain, method, tau):
    """A trained head has a tau far above plain decoding's 1, and changes no token."""
    found = jaxspec.Engine(model, method).generate(prompts, max_new_tokens=48)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert np.mean([each.statistics.tau for each in found]) > tau


@pytest.mark.parametrize(
    "method", ["dflash", "eagle", "eagle3", "early-exit+cali-ts", "edd", "layer-skip", "medusa", "draft-model@vdm"]
)
def test_every_head_is_whole(model, method):
    engine = jaxspec.Engine(model, method)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((engine.models.draft, engine.models.control)))


def test_methods_that_it_can_run(capsys):
    methods.run(Methods(target=Path("builtin")))
    ready = " ".join(capsys.readouterr().out.split()).partition("builtin can run: ")[2]
    assert ready.startswith(
        "plain, ngram, dflash, eagle, eagle3, early-exit, edd, layer-skip, medusa, draft-model@vdm "
    )


def test_generate_names_it_like_any_other():
    options = ("--prompts", "builtin", "--limit", 1, "--max-new-tokens", 8, "--format", "json")
    code, out, err = run("jaxspec", "generate", "--target", "builtin", *options)
    assert code == 0 and len(json.loads(out)["tokens"]) == 8
    assert "method: dflash," in err


def test_demo_shows_a_text_and_a_table(monkeypatch, capsys):
    monkeypatch.setattr(demo, "NEW_TOKENS", 16)
    monkeypatch.setattr(demo, "REPEATS", 1)
    monkeypatch.setattr(demo, "PROMPTS", 2)
    monkeypatch.setattr(demo, "METHODS", ("plain", "ngram+chain"))
    monkeypatch.setattr(demo, "Console", lambda **options: Console(**options, width=100))
    demo.run(Demo())
    out = capsys.readouterr().out
    assert read_questions("builtin")[0].turns[0].strip().splitlines()[0] in out
    for word in (*demo.METHODS, "tokens/s", "speedup", "tau", "divergences"):
        assert word in out
    command = next(line for line in out.splitlines() if line.startswith("Next, try: "))
    words = shlex.split(command.partition(": ")[2])
    assert words[1:5] == ["generate", "--target", "builtin", "--prompt"] and words[-1] == "--show-drafts"


def test_the_table_of_the_demo_has_the_fastest_first(model, plain):
    for times in ((2.0, 1.0), (1.0, 2.0)):
        slow = {
            name: [[dataclasses.replace(plain[0], decode_seconds=seconds)] * 2]
            for name, seconds in zip(("plain", "ngram+chain"), times, strict=True)
        }
        names, _, speedups, *_ = zip(*demo.rows(slow, model.target), strict=True)
        assert list(names) == sorted(slow, key=lambda name: slow[name][0][0].decode_seconds)
        assert sorted(speedups) == sorted(["1.00x", f"{times[0] / times[1]:.2f}x"])
