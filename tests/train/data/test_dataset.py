"""The windows of a run, from open and from generated text."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.train.data import dataset, tokenizer
from jaxspec.train.data.dataset import Sources
from jaxspec.train.data.prompts import cut_prompts
from jaxspec.train.data.records import Conversation, Message
from jaxspec.train.data.text import Document, Encoded
from jaxspec.train.hyperparameters import Recipe

RECIPE = Recipe(steps=10, batch_size=4, learning_rate=1e-3)
OPEN = [Document(f"open{i}", "oo o\n" * 40) for i in range(20)]
GENERATED = [Document(f"g:{i}", "gg g\n" * 40, complete=False) for i in range(60)]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(tokenizer.learn(["gg g\noo o\n" * 50], 258), path, max_length=16)
    return load_tokenizer(path)


def generated(learnt: Any, place: Path) -> list[bool]:
    """Of each window, whether it is generated."""
    texts = [learnt.decode(row.tolist()) for row in np.asarray(dataset.read(place).tokens)]
    assert all(("g" in text) != ("o" in text) for text in texts)
    return ["g" in text for text in texts]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_the_share_of_windows(share: float, learnt: Any, tmp_path: Path, capsys: pytest.CaptureFixture):
    dataset.prepare(tmp_path, learnt, Sources(OPEN, GENERATED, share), 16, RECIPE, 258)
    found = generated(learnt, tmp_path / "train")
    assert (len(found), sum(found)) == (40, 40 * share)
    assert not any(generated(learnt, tmp_path / "held-out"))
    assert capsys.readouterr().err == ""
    (tmp_path / "open").mkdir()
    dataset.prepare(tmp_path / "open", learnt, Sources(OPEN), 16, RECIPE, 258)
    same = [np.asarray(dataset.read(place / "held-out").tokens).tolist() for place in (tmp_path, tmp_path / "open")]
    assert same[0] == same[1]


@pytest.mark.parametrize(("share", "windows"), [(0.9, 3), (0.1, 1)])
def test_both_kinds_have_a_window(share: float, windows: int, learnt: Any, tmp_path: Path):
    recipe = Recipe(steps=1, batch_size=4, learning_rate=1e-3)
    dataset.prepare(tmp_path, learnt, Sources(OPEN, GENERATED, share), 16, recipe, 258)
    assert sum(generated(learnt, tmp_path / "train")) == windows
    with pytest.raises(ValueError, match="one step with one window cannot mix"):
        dataset.prepare(
            tmp_path, learnt, Sources(OPEN, GENERATED, share), 16, dataclasses.replace(recipe, batch_size=1), 258
        )


def test_a_token_outside_the_vocabulary_is_refused(learnt: Any, tmp_path: Path):
    with pytest.raises(ValueError, match=r"the tokenizer made token .* of the text, outside the vocabulary of 99"):
        dataset.prepare(tmp_path, learnt, Sources(OPEN), 16, RECIPE, 99)


def test_a_held_out_record_that_cannot_be_used(
    learnt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """The template refuses a system message; `shutil.py` is held out by its name."""
    monkeypatch.setattr(
        learnt,
        "chat_template",
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    )
    turns = Message("user", "gg"), Message("assistant", "oo" * 40)
    sources = Sources([Conversation("a", turns), Conversation("shutil.py", (Message("system", "x"), *turns))])
    recipe = Recipe(steps=1, batch_size=1, learning_rate=1e-3)
    dataset.prepare(tmp_path, learnt, sources, 16, recipe, 258)
    assert "the held-out text is left out: none of 1 records can be used: shutil.py: " in capsys.readouterr().err
    assert dataset.load(tmp_path)[1] is None
    with pytest.raises(ValueError, match="correct this record or remove it"):
        dataset.prepare(tmp_path / "strict", learnt, dataclasses.replace(sources, strict=True), 16, recipe, 258)


def test_batches_hold_both(learnt: Any, tmp_path: Path):
    dataset.prepare(tmp_path, learnt, Sources(OPEN, GENERATED, 0.5), 16, RECIPE, 258)
    found, stream = (
        np.array(generated(learnt, tmp_path / "train")),
        dataset.batches(dataset.read(tmp_path / "train"), 4, seed=0),
    )
    epoch = [found[np.asarray(next(stream).index)] for _ in range(10)]
    assert np.sum(epoch) == 20
    assert sum(0 < batch.sum() < 4 for batch in epoch) > 5


def test_windows_without_a_token_that_counts_are_refused(learnt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prompt = Encoded(np.arange(640, dtype=np.int32) % 5, np.zeros(640, bool))
    monkeypatch.setattr(dataset, "encode", lambda *given: [prompt])
    with pytest.raises(ValueError, match="no token of the assistant is in any of 40 windows of 16 tokens"):
        dataset.prepare(tmp_path, learnt, Sources(OPEN), 16, RECIPE, 258)
    assert not list(tmp_path.iterdir())


def test_text_that_a_chat_template_wrote_is_named(learnt: Any, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Once for all sources. A name within a text, such as in source code, is not named."""
    written = [Document("a:1", "\n<s>[INST] hi [/INST] yes"), Document("a:2", "USER: hi ASSISTANT: yes</s>\n")]
    sources = Sources([*OPEN, Document("b", "oo <s> o\n")], [*GENERATED, *written], 0.5)
    dataset.prepare(tmp_path, learnt, sources, 16, RECIPE, 258)
    assert capsys.readouterr().err == (
        "warning: 2 of 83 texts begin or end with the name of a special token, such as <s>, which is read as ordinary "
        "text; give conversations as messages\n"
    )
    cut_prompts([*OPEN, *written], learnt, 1, 16, seed=0)
    assert "warning: 2 of" in capsys.readouterr().err


def test_a_source_that_is_too_small(learnt: Any, tmp_path: Path, capsys: pytest.CaptureFixture):
    dataset.prepare(tmp_path, learnt, Sources(OPEN, GENERATED[:1], 0.5), 16, RECIPE, 258)
    found = generated(learnt, tmp_path / "train")
    assert (len(found), sum(found)) == (40, 20)
    assert capsys.readouterr().err == "the generated text fills 13 windows of its 20: each is seen 1.5 times\n"


def test_text_that_changed_since_it_was_packed(learnt: Any, tmp_path: Path, capsys: pytest.CaptureFixture):
    dataset.prepare(tmp_path, learnt, Sources(OPEN), 16, RECIPE, 258)
    dataset.warn_of_changes(tmp_path, Sources(OPEN))
    assert capsys.readouterr().err == ""
    dataset.warn_of_changes(tmp_path, Sources([*OPEN[:-1], Document("open19", "other\n")]))
    assert "the text has changed since this run began" in capsys.readouterr().err
