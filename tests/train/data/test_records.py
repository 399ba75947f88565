"""Every format of record, and every way in which one can be bad."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxspec.train.data import records
from jaxspec.train.data.records import BadRecord, Conversation, Message, usable
from jaxspec.train.data.text import Document

TALK = (Message("user", "hi"), Message("assistant", "hello"))
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
HUMAN, GPT = {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}
GOOD = {"text": "good"}


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def test_lines_of_every_format(tmp_path: Path):
    system = {"role": "system", "content": "be brief"}
    path = lines(
        tmp_path / "all.jsonl",
        GOOD,
        {"messages": [system, USER, ASSISTANT]},
        {"id": "x", "conversations": [HUMAN, GPT]},
    )
    assert records.read(path, strict=True) == [
        Document("all.jsonl:1", "good"),
        Conversation("all.jsonl:2", (Message("system", "be brief"), *TALK)),
        Conversation("all.jsonl:3", TALK),
    ]


def test_null_is_no_value(tmp_path: Path):
    """Records of merged data sets have the columns of all."""
    path = lines(
        tmp_path / "a.jsonl",
        {"messages": None, "conversations": None, **GOOD, "complete": None},
        {"messages": None, "conversations": [HUMAN, GPT], "text": None},
    )
    assert records.read(path, strict=True) == [Document("a.jsonl:1", "good"), Conversation("a.jsonl:2", TALK)]


def test_a_list_of_every_format(tmp_path: Path):
    path = tmp_path / "all.json"
    path.write_text(
        json.dumps([{"conversations": [HUMAN, GPT, HUMAN]}, GOOD, {"messages": [USER, ASSISTANT]}], indent=1)
    )
    assert records.read(path, strict=True) == [
        Conversation("all.json#0", (*TALK, TALK[0])),
        Document("all.json#1", "good"),
        Conversation("all.json#2", TALK),
    ]


@pytest.mark.parametrize(("user", "assistant"), [("human", "gpt"), ("user", "chatgpt"), ("user", "assistant")])
def test_names_of_the_speakers(tmp_path: Path, user: str, assistant: str):
    turns = [{"from": user, "value": "hi"}, {"from": assistant, "value": "hello"}]
    assert records.read(lines(tmp_path / "a.jsonl", {"conversations": turns})) == [Conversation("a.jsonl:1", TALK)]


def test_lines_end_at_line_feeds_only(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"text": "one\u2028two"}\r\n\n  \n{"text": "three"}'.encode())
    assert records.read(path, strict=True) == [
        Document("a.jsonl:1", "one\u2028two"),
        Document("a.jsonl:4", "three"),
    ]


def test_any_other_file_is_one_text(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text('{"text": "no record"}\n')
    assert records.read(path) == [Document("a.txt", '{"text": "no record"}\n')]


def test_a_folder_of_everything(tmp_path: Path):
    (tmp_path / "b").mkdir()
    lines(tmp_path / "b" / "chat.jsonl", {"messages": [USER, ASSISTANT]}, GOOD)
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "one.json").write_text('{"text": "an object, no list"}')
    (tmp_path / "numbers.JSON").write_text("[1, 2]")
    assert records.read(tmp_path, strict=True) == [
        Document("a.py", "x = 1\n"),
        Conversation("b/chat.jsonl:1", TALK),
        Document("b/chat.jsonl:2", "good"),
        Document("numbers.JSON", "[1, 2]"),
        Document("one.json", "an object, no list"),
    ]


BAD = {
    "{": "it is not JSON",
    "[" * 100_000: "it is not JSON",
    "1" * 5000: "it is not JSON",
    "null": "it is not a JSON object",
    '["text"]': "it is not a JSON object",
    '{"prompt": "hi"}': "it has no messages, conversations or text",
    '{"text": 3}': "its text is not a string",
    '{"text": " "}': "its text is empty",
    '{"text": "\\ud83d"}': "its text holds half a surrogate pair, which is not a character",
    '{"messages": "hi"}': "its messages are not a list",
    '{"conversations": []}': "its conversations are empty",
    '{"messages": ["hi"]}': "turn 1 is not an object with role and content",
    '{"conversations": [{"role": "user", "content": "hi"}]}': "turn 1 is not an object with from and value",
    '{"messages": [{"role": "tool", "content": "hi"}]}': (
        "turn 1 has the role 'tool', which must be one of system, user, human, assistant, gpt, chatgpt"
    ),
    '{"messages": [{"role": [], "content": "hi"}]}': (
        "turn 1 has the role [], which must be one of system, user, human, assistant, gpt, chatgpt"
    ),
    '{"messages": [{"role": "user", "content": ["hi"]}]}': "the content of turn 1 is not a string",
    json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "image": "b"}]}]}): (
        "the content of turn 1 is not a string"
    ),
    json.dumps({"messages": [USER, {**ASSISTANT, "reasoning_content": "hm"}]}): (
        "turn 2 has reasoning_content, which is not read; put all of its text into its content"
    ),
    json.dumps({"messages": [USER, {**ASSISTANT, "weight": 0}]}): (
        "turn 2 has weight 0; all turns of the assistant are learnt alike, and no others"
    ),
    json.dumps({"messages": [USER, {**ASSISTANT, "train": False}]}): (
        "turn 2 has train False; all turns of the assistant are learnt alike, and no others"
    ),
    json.dumps({"messages": [{**USER, "loss": True}, ASSISTANT]}): (
        "turn 1 has loss True; all turns of the assistant are learnt alike, and no others"
    ),
    json.dumps({"messages": [USER, ASSISTANT], "tools": [{"name": "f"}]}): "it has tools, which jaxspec does not read",
    json.dumps({"messages": [USER, ASSISTANT], "images": ["a.png"]}): "it has images, which jaxspec does not read",
    json.dumps({"messages": [USER, ASSISTANT], "chat_template_kwargs": {"enable_thinking": False}}): (
        "it has chat_template_kwargs, which jaxspec does not read"
    ),
    json.dumps({"messages": [{"role": "system", "content": "x"}, USER, ASSISTANT], "system": "y"}): (
        "it has more than one system prompt"
    ),
    '{"conversations": [{"from": "human", "value": ""}]}': "the value of turn 1 is empty",
    json.dumps({"messages": [ASSISTANT, USER]}): "turn 1 is the assistant's, but should be the user's",
    json.dumps({"messages": [USER, ASSISTANT, ASSISTANT]}): "turn 3 is the assistant's, but should be the user's",
    json.dumps({"conversations": [HUMAN, {"from": "system", "value": "x"}]}): (
        "turn 2 is the system's, but should be the assistant's"
    ),
    json.dumps({"messages": [USER]}): "the assistant has no turn",
    json.dumps({"messages": [{"role": "system", "content": "x"}, USER]}): "the assistant has no turn",
}


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=[f"{i}" for i in range(len(BAD))])
def test_bad_records(line: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n\n{line}\n')
    assert records.read(path) == [Document("a.jsonl:1", "good")]
    assert capsys.readouterr().err == f"skipped 1 of 2 records: a.jsonl:3: {reason}\n"
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        records.read(path, strict=True)
    assert str(refusal.value) == f"a.jsonl:3: {reason}; correct this record or remove it"


def test_bad_records_of_a_list_and_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "a.json").write_text('[1, {"text": "good"}, {"text": ""}]')
    (tmp_path / "b.jsonl").write_text('{\n{"text": "good"}\n[]\n')
    (tmp_path / "c.txt").write_text("plain")
    lines(tmp_path / "d.jsonl", {"prompt": 1}, {"prompt": 2})  # of a format that is not known
    (tmp_path / "e.txt").write_bytes(b"\xe9")
    assert [each.name for each in records.read(tmp_path)] == ["a.json#1", "b.jsonl:2", "c.txt"]
    assert capsys.readouterr().err == (
        "left out 1 of 5 files, which are not UTF-8 text: e.txt\n"
        "skipped 5 of 8 records: a.json#0: it is not a JSON object; a.json#2: its text is empty; "
        "b.jsonl:1: it is not JSON; and 2 more\n"
    )
    with pytest.raises(ValueError, match=r"^a\.json#0: it is not a JSON object; correct this record or remove it$"):
        records.read(tmp_path, strict=True)


def test_nothing_good_is_left(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{\n{"text": ""}\n')
    with pytest.raises(
        ValueError, match=r"^none of 2 records can be used: a\.jsonl:1: it is not JSON; a\.jsonl:2: its"
    ):
        records.read(path)
    for name, content in (("b.json", "7"), ("c.json", "[]"), ("d.json", "1\n2")):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=f"{name} holds no records; a .jsonl file has one per line and a"):
            records.read(tmp_path / name)


def test_lines_in_a_file_named_as_a_list_and_a_system_prompt_beside_the_turns(tmp_path: Path):
    lines(tmp_path / "a.json", {"conversations": [HUMAN, GPT], "system": "be brief", "tools": "[]"}, GOOD)
    assert records.read(tmp_path / "a.json", strict=True) == [
        Conversation("a.json:1", (Message("system", "be brief"), *TALK)),
        Document("a.json:2", "good"),
    ]


def test_one_record_a_file_and_files_of_other_forms(tmp_path: Path, capsys: pytest.CaptureFixture):
    talk = {"messages": [USER, ASSISTANT], "system_prompt": "be brief"}
    (tmp_path / "a.json").write_text(json.dumps(talk, indent=1))
    lines(tmp_path / "b.ndjson", talk)
    settings = {"name": "left-pad", "files": ["a.js"], "messages": {"en": "hi"}}
    (tmp_path / "c.json").write_text(json.dumps(settings))
    others = ({"data": [talk]}, [talk["messages"]], [[USER], [USER]])
    for name, content in zip("def", others, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    lines(tmp_path / "g.jsonl", talk["messages"])
    lines(tmp_path / "h.jsonl", {"prompt": "x", "completion": "y"})
    whole = (Message("system", "be brief"), *TALK)
    assert records.read(tmp_path) == [
        Conversation("a.json", whole),
        Conversation("b.ndjson:1", whole),
        Document("c.json", json.dumps(settings)),
    ]
    err = capsys.readouterr().err
    assert "skipped 5 of 8 records: d.json: its records are inside an object" in err
    assert "e.json: no record of this file has usable messages, conversations or text" in err


def test_rows_of_parquet_gzipped_lines_and_contents_of_one_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    part = {"type": "text", "text": "hello", "image": None}
    row = {"prompt_id": "a", "messages": [USER, {"role": "assistant", "content": [part]}], "text": None}
    table = SimpleNamespace(to_pylist=lambda: [row, GOOD])
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(read_table=lambda file: table))
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    rows = [Conversation("a.parquet:1", TALK), Document("a.parquet:2", "good")]
    assert records.read(tmp_path / "a.parquet", strict=True) == rows
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"plain"))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b"plain" * 99)[:-9])
    found = [*rows, Conversation("b.jsonl.gz:1", TALK), Document("c.txt.gz", "plain")]
    assert records.read(tmp_path, strict=True) == found
    assert "left out 1 of 4 files, which are not UTF-8 text: d.jsonl.gz" in capsys.readouterr().err


def test_linked_folders_are_read_and_loops_end(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.txt").write_text("text")
    (tmp_path / "data/own").mkdir()
    (tmp_path / "data/own/b.txt").write_text("text")
    (tmp_path / "data/again").symlink_to("own")  # its files are read once
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/itself").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "data")
    assert [each.name for each in records.read(tmp_path / "data")] == ["linked/a.txt", "own/b.txt"]


def test_paths_without_text(tmp_path: Path):
    (tmp_path / "latin1.jsonl").write_bytes(b"\xe9")
    with pytest.raises(ValueError, match=r"latin1\.jsonl holds no text: it is empty or not UTF-8"):
        records.read(tmp_path / "latin1.jsonl")
    with pytest.raises(ValueError, match="nowhere is neither a file nor a folder"):
        records.read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no text: no file in it is UTF-8 and not empty"):
        records.read(tmp_path)


def test_strict_stops_at_the_first():
    def results():
        yield 1
        yield BadRecord("a", "first")
        raise AssertionError

    with pytest.raises(ValueError, match=r"^a: first; correct"):
        usable(results(), strict=True)
    assert usable([1, 2], strict=True) == [1, 2]
    assert usable([], strict=False) == []
