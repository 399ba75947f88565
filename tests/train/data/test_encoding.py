"""Tokens that count in the loss: all of a document, and the assistant's turns of a conversation."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.train.data import encoding, tokenizer
from jaxspec.train.data.records import Conversation, Message
from jaxspec.train.data.text import Document, Encoded

TEXTS = ["the user says hi to the assistant\n" * 3, "naïve 🙂 日本\n" * 3]
PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}"
    "{% endif %}{{ '\n' }}{% endfor %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system\nrole') }}{% endif %}" + PLAIN
LAST_ONLY = "{% set messages = messages[-2:] %}" + PLAIN
OTHER_PROMPT = PLAIN.replace("%}<assistant>", "%}<assistant>(thinks)")
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENDS_IN_BYTES = (
    "{% for m in messages %}{{ m.role }}:{% generation %}{% if m.role == 'assistant' %}{{ m.content }}{% endif %}"
    "{% endgeneration %}.{% endfor %}"
)
UNMARKED = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if false %}{% generation %}{% endgeneration %}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(tokenizer.learn(TEXTS, 270), path, max_length=8)
    return path


@pytest.fixture(scope="module")
def learnt(folder: Path) -> Any:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return with_template(folder, PLAIN)


@pytest.fixture(scope="module")
def marked(folder: Path) -> Any:
    return with_template(folder, MARKED)


def with_template(folder: Path, template: str) -> Any:
    loaded: Any = load_tokenizer(folder)
    loaded.chat_template = template
    return loaded


def talk(*contents: str, name: str = "a.jsonl:1", system: str = "") -> Conversation:
    """A conversation of user and assistant by turns."""
    spoken = [Message("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]
    return Conversation(name, (*([Message("system", system)] if system else []), *spoken))


def runs(loaded: Any, encoded: Encoded) -> list[str]:
    """The texts of the stretches that count."""
    edges = np.flatnonzero(np.diff(encoded.counted, prepend=False, append=False))
    return [loaded.decode(encoded.tokens[start:end].tolist()) for start, end in edges.reshape(-1, 2)]


def test_documents_go_from_bos_to_eos(learnt: Any, caplog: pytest.LogCaptureFixture):
    for text, encoded in zip(TEXTS, encoding.encode(learnt, [Document("a", text) for text in TEXTS]), strict=True):
        assert (encoded.tokens[0], encoded.tokens[-1]) == (tokenizer.BOS_ID, tokenizer.EOS_ID)
        assert learnt.decode(encoded.tokens[1:-1].tolist()) == text
        assert encoded.tokens.dtype == np.int32
        assert encoded.counted.all()
    assert not caplog.records  # of texts that are longer than the context


def test_only_a_complete_document_ends_with_eos(learnt: Any):
    ends, broken = encoding.encode(learnt, [Document("a", TEXTS[0]), Document("b", TEXTS[0], complete=False)])
    assert ends.tokens.tolist() == [*broken.tokens.tolist(), tokenizer.EOS_ID]
    assert broken.counted.all()


def test_special_tokens_in_a_document_are_text(learnt: Any):
    before = learnt.encode("</s>")
    (encoded,) = encoding.encode(learnt, [Document("a", "<s>x</s>")])
    assert set(encoded.tokens[1:-1].tolist()).isdisjoint((tokenizer.BOS_ID, tokenizer.EOS_ID))
    assert learnt.decode(encoded.tokens[1:-1].tolist()) == "<s>x</s>"
    assert learnt.encode("</s>") == before == [tokenizer.BOS_ID, tokenizer.EOS_ID]


def test_tokenizers_with_an_end_of_their_own_and_with_none(folder: Path, tmp_path: Path):
    values = json.loads((folder / "tokenizer.json").read_text())
    values["post_processor"]["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    values["post_processor"]["special_tokens"]["</s>"] = {"id": "</s>", "ids": [tokenizer.EOS_ID], "tokens": ["</s>"]}
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    ends = load_tokenizer(tmp_path)
    assert ends is not None
    assert ends.encode("x")[-1] == tokenizer.EOS_ID
    (encoded,) = encoding.encode(ends, [Document("a", "</s>")])
    assert encoded.tokens.tolist() == ends.encode_as_text(["</s>"])[0]
    (broken,) = encoding.encode(ends, [Document("a", "</s>", complete=False)])
    assert broken.tokens.tolist() == encoded.tokens[:-1].tolist()
    endless: Any = load_tokenizer(folder)
    endless.eos_token_id = None
    (encoded,) = encoding.encode(endless, [Document("a", "x")])
    assert encoded.tokens.tolist() == endless.encode("x")


def test_encodes_no_more_than_needed(plain: Any):
    found = [Document("a", "some text"), talk("hi", "some text")] * 200
    some = encoding.encode(plain, found, enough=100)
    assert 100 <= sum(len(each.tokens) for each in some) < 3000
    assert len(encoding.encode(plain, found)) == len(encoding.encode(plain, found, enough=10**9)) == 400


def test_documents_and_conversations_keep_their_order(plain: Any):
    found = [talk("hi", "one"), Document("a", "two"), Document("b", "three"), talk("hi", "four")]
    decoded = [runs(plain, each) for each in encoding.encode(plain, found)]
    assert decoded == [["one</s>"], ["<s>two</s>"], ["<s>three</s>"], ["four</s>"]]


def test_only_the_turns_of_the_assistant_count(plain: Any, marked: Any):
    conversation = talk("hi", "naïve 🙂", "and\n", " again \n", "bye", system="be brief")
    for loaded in (plain, marked):
        (encoded,) = encoding.encode(loaded, [conversation])
        assert runs(loaded, encoded) == ["naïve 🙂</s>", " again \n</s>"]
        assert loaded.decode(encoded.tokens.tolist()) == (
            "<s><system>be brief</s>\n<user>hi</s>\n<assistant>naïve 🙂</s>\n<user>and\n</s>\n"
            "<assistant> again \n</s>\n<user>bye</s>\n"
        )


def test_an_answer_that_was_broken_off_ends_with_its_words(plain: Any, marked: Any):
    conversation = dataclasses.replace(talk("hi", "one", "and", " tw "), complete=False)
    for loaded in (plain, marked):
        (encoded,) = encoding.encode(loaded, [conversation])
        assert runs(loaded, encoded) == ["one</s>", " tw"]
        assert loaded.decode(encoded.tokens.tolist()).endswith("<assistant> tw")


@given(st.lists(st.text(min_size=1, max_size=12).filter(str.strip), min_size=2, max_size=6))
def test_marks_and_prefixes_agree(plain: Any, marked: Any, contents: list[str]):
    (one,), (other,) = (encoding.encode(each, [talk(*contents)], strict=True) for each in (plain, marked))
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.counted.tolist() == other.counted.tolist()
    assert runs(plain, one) == [f"{content}</s>" for content in contents[1::2]]


def test_all_bytes_of_a_last_character_count(folder: Path):
    loaded = with_template(folder, ENDS_IN_BYTES)
    (encoded,) = encoding.encode(loaded, [talk("hi", "é日")])
    assert runs(loaded, encoded) == ["é日"]


def test_a_template_without_an_end_of_turn_ends_it_with_the_line(folder: Path):
    loaded = with_template(folder, NO_END)
    (encoded,) = encoding.encode(loaded, [talk("hi", "one", "and", "two")])
    assert runs(loaded, encoded) == ["assistant: one\n", "assistant: two\n"]  # for it has no prompt to generate from


def test_templates_that_change_the_text_before_an_answer(folder: Path):
    loaded = with_template(folder, LAST_ONLY)
    first, second = encoding.encode(loaded, [talk("hi", "hello", "and", "again")])
    assert loaded.decode(first.tokens) == "<s><user>hi</s>\n<assistant>hello</s>"
    assert loaded.decode(second.tokens).startswith("<s><assistant>hello</s>\n<user>and</s>\n<assistant>again</s>")
    assert [runs(loaded, each) for each in (first, second)] == [["hello</s>"], ["again</s>"]]
    loaded = with_template(folder, OTHER_PROMPT)
    (found,) = encoding.encode(loaded, [talk("hi", "hello")])
    assert loaded.decode(found.tokens) == "<s><user>hi</s>\n<assistant>(thinks)hello</s>"
    assert runs(loaded, found) == ["hello</s>"]


@pytest.mark.parametrize(
    ("template", "bad", "reason"),
    [
        (NO_SYSTEM, talk("hi", "hello", name="a:7", system="be brief"), "no system role"),
        (UNMARKED, talk("hi", "hello", name="a:7"), "it marks no text of the assistant"),
    ],
    ids=["refuses", "marks nothing"],
)
def test_conversations_that_the_template_cannot_write(
    folder: Path, template: str, bad: Conversation, reason: str, capsys: pytest.CaptureFixture
):
    loaded, document = with_template(folder, template), Document("b", "text")
    assert len(encoding.encode(loaded, [bad, document])) == 1
    reason = f"a:7: the chat template cannot be used: {reason}"
    assert capsys.readouterr().err == f"skipped 1 of 2 records: {reason}\n"
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        encoding.encode(loaded, [document, bad], strict=True)
    assert str(refusal.value) == f"{reason}; correct this record or remove it"
    with pytest.raises(ValueError, match=f"^none of 1 records can be used: {reason}$"):
        encoding.encode(loaded, [bad])


def test_tokenizers_that_cannot_do_conversations(learnt: Any):
    with pytest.raises(ValueError, match="the tokenizer has no chat template; train on plain text"):
        encoding.encode(learnt, [Document("a", "x"), talk("hi", "hello")])
