"""Published formats, recognised by their keys, in every kind of file; and the hub, which is never reached."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import huggingface_hub
import pytest

from jaxspec.evaluate import questions
from jaxspec.evaluate.questions import Question, read_questions
from jaxspec.host import json_lines


def mbpp(task: str) -> str:
    return (
        f"You are an expert Python programmer, and here is your task: {task} Your code should pass these tests:\n\n"
        "assert f() == 1\nassert f()\n[BEGIN]"
    )


RECORDS: list[tuple[dict[str, Any], Question]] = [
    (
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x", "y"]},
        Question(("a", "b"), 81, "writing", ("x", "y")),
    ),
    (
        {"question": "1 + 1?", "answer": "It is 2.\n#### 2"},
        Question(("Question: 1 + 1?\nAnswer:",), None, None, ("It is 2.\n#### 2",), suite="gsm8k"),
    ),
    (
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": ""},
        Question(("def f():\n",), "HumanEval/0", suite="humaneval"),
    ),
    (
        {"task_id": 11, "text": "Add.", "code": "def f(): ...", "test_list": ["assert f() == 1", "assert f()"]},
        Question((mbpp("Add."),), 11, None, ("def f(): ...\n[DONE]",), suite="mbpp"),
    ),
    (
        {"text": "", "code": "x", "test_list": ["assert f() == 1", "assert f()"]},
        Question((mbpp(""),), None, None, ("x\n[DONE]",), suite="mbpp"),
    ),
    (
        {
            "task_id": 2,
            "prompt": "Sum.",
            "code": "x",
            "test_imports": [],
            "test_list": ["assert f() == 1", "assert f()"],
        },
        Question((mbpp("Sum."),), 2, None, ("x\n[DONE]",), suite="mbpp"),
    ),
    (
        {"task_id": "Mbpp/2", "prompt": '"""\nSum.\n"""\n', "entry_point": "f", "base_input": []},  # MBPP+
        Question(('"""\nSum.\n"""\n',), "Mbpp/2", suite="mbpp"),
    ),
    # A translation of HumanEval, whose answers are not Python.
    ({"task_id": "CPP/0", "prompt": "bool f() {", "entry_point": "f"}, Question(("bool f() {",))),
    (
        {
            "problem": "$1+1$",
            "solution": "$\\boxed{2}$",
            "answer": "2",
            "subject": "Algebra",
            "unique_id": "test/a/1.json",
        },
        Question(("Problem:\n$1+1$\n\nSolution:",), "test/a/1.json", "Algebra", ("$\\boxed{2}$",), suite="math"),
    ),
    (
        {"document": "Long.", "summary": "Short.", "id": "7"},
        Question(("Article: Long.\nSummary:",), "7", None, ("Short.",), suite="xsum"),
    ),
    (
        {"article": "Long.", "highlights": "Short.", "id": "7"},
        Question(("Article: Long.\nSummary:",), "7", None, ("Short.",), suite="cnn-dm"),
    ),
    ({"instruction": "Do.", "input": "It.", "output": "Done."}, Question(("Do.\nIt.",), suite="alpaca")),
    ({"instruction": "Do.", "input": "", "output": "Done."}, Question(("Do.",), suite="alpaca")),
    ({"prompt": "a"}, Question(("a",))),
    ({"prompt": "a", "category": 5}, Question(("a",), category="5")),
    ({"prompt": "a", "category": ["x"]}, Question(("a",))),
    (
        {"turns": ["1 + 1?"], "reference": ["It is 2.\n#### 2"], "category": "math"},
        Question(("1 + 1?",), None, "math", ("It is 2.\n#### 2",), suite="gsm8k"),
    ),
]


@pytest.mark.parametrize("answer", ["Nobody, 4 times.", "#### ,.", "#### $5", "#### 5 apples", "#### \u22125"])
def test_an_answer_without_a_final_number_is_not_gsm8ks(answer: str, tmp_path: Path):
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"question": "Who?", "answer": answer}), encoding="utf-8")
    with pytest.raises(ValueError, match="an answer of GSM8K ends in #### and a number"):
        read_questions(file)


@pytest.mark.parametrize("name", [True, 1.0, [1], {}])
def test_an_id_is_text_or_a_whole_number(name: Any, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a", "question_id": name}))
    with pytest.raises(ValueError, match="line 1: question_id must be a string or a whole number, not "):
        read_questions(tmp_path / "a.jsonl")


def test_what_a_json_string_may_hold_ends_no_line(tmp_path: Path):
    """JSON allows U+2028 and U+0085 as they are, and some editors put a byte order mark first."""
    text, file = "a\u2028b\u0085c", tmp_path / "questions.jsonl"
    line = json.dumps({"prompt": text}, ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n{line}\n".encode())
    assert read_questions(file) == [Question((text,))] * 2
    file.write_bytes(b"\xef\xbb\xbf" + f"[{line}]".encode())
    assert read_questions(file.rename(tmp_path / "questions.json")) == [Question((text,))]


def test_every_kind_of_file(tmp_path: Path):
    records = [record for record, _ in RECORDS]
    lines, listed = "".join(json.dumps(record) + "\n" for record in records), json.dumps(records)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.json").write_text(listed, encoding="utf-8")
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(listed.encode()))
    for file in tmp_path.iterdir():
        assert read_questions(file) == [question for _, question in RECORDS], file.name
    (tmp_path / "torn.jsonl.gz").write_bytes((tmp_path / "b.jsonl.gz").read_bytes()[:40])
    spoilt = bytearray((tmp_path / "b.jsonl.gz").read_bytes())
    spoilt[15:25] = b"\xff" * 10
    (tmp_path / "spoilt.jsonl.gz").write_bytes(spoilt)
    for name in ("torn.jsonl.gz", "spoilt.jsonl.gz"):
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            read_questions(tmp_path / name)
    (tmp_path / "bad.json").write_text("[1", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.json is not JSON"):
        read_questions(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("record", "ignored"),
    [
        ({"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "tools": []}, "messages"),
        ({"instruction": "Who?", "context": "Bob is.", "response": "Bob"}, "context"),  # as Dolly's
        ({"instruction": "Who?", "prompt": "Who? Bob"}, "prompt"),
        ({"turns": ["hi"], "prompt": "ho", "temperature": 0.7, "max_tokens": 5}, "max_tokens, prompt, temperature"),
        ({"question_id": 81, "category": "writing", "turns": ["a"], "reference": ["x"], "choices": []}, None),
    ],
)
def test_keys_that_would_change_an_answer_are_named(
    record: dict[str, Any], ignored: str | None, tmp_path: Path, capsys: pytest.CaptureFixture
):
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    read_questions(tmp_path / "a.jsonl")
    named = f"warning: keys of questions of {tmp_path}/a.jsonl that are ignored: {ignored}\n"
    assert capsys.readouterr().err == (named if ignored else "")


def test_a_system_prompt_beside_the_turns_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"system_prompt": "be brief", "prompt": "hi"}\n{"prompt": "ho"}\n')
    for limit in (None, 1):
        assert read_questions(file, limit) == [Question(("hi",)), Question(("ho",))][:limit]
        assert "questions.jsonl that are ignored: system_prompt; with --system" in capsys.readouterr().err


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.parquet").write_bytes(b"")

    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(json_lines.importlib, "import_module", missing)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read_questions(tmp_path / "a.parquet")
    monkeypatch.setattr(json_lines.importlib, "import_module", lambda name: SimpleNamespace(read_table=missing))
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read as Parquet: "):
        read_questions(tmp_path / "a.parquet")


def test_speed_bench_is_read_once_it_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Table:
        rows: tuple[dict[str, Any], ...] = ()

        @classmethod
        def read_table(cls, path: Path) -> type["Table"]:
            return cls

        @classmethod
        def to_pylist(cls) -> list[dict[str, Any]]:
            return list(cls.rows)

    row = {"question_id": "a1", "category": "coding", "sub_category": None, "src_id": "7", "turns": ["a", "b"]}
    monkeypatch.setattr(json_lines.importlib, "import_module", lambda name: Table)
    Table.rows = (row,)
    assert read_questions(tmp_path / "test.parquet") == [Question(("a", "b"), "a1", "coding")]
    Table.rows = (row, {**row, "turns": [f"{questions.UNPREPARED}\n\nSolve {{question}}"]})
    with pytest.raises(ValueError, match=r"test\.parquet, row 2: SPEED-Bench .* run `python prepare_data\.py"):
        read_questions(tmp_path / "test.parquet")


class Hub:
    """A data set of several files of which one is the test split's."""

    there = ("README.md", "train.jsonl", "latest.jsonl", "test.jsonl")

    def list_repo_files(self, name: str, repo_type: str) -> list[str]:
        assert repo_type == "dataset"
        return list(self.there)


@pytest.mark.parametrize(("prompts", "file"), [("org/data", "test.jsonl"), ("org/data/train.jsonl", "train.jsonl")])
def test_a_hub_id(prompts: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def download(name: str, asked: str, repo_type: str) -> str:
        assert (name, asked, repo_type) == ("org/data", file, "dataset")
        (tmp_path / asked).write_text('{"prompt": "a"}\n', encoding="utf-8")
        return str(tmp_path / asked)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert read_questions(prompts) == [Question(("a",))]


def test_a_hub_id_that_could_mean_several_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "there", ("a/test.jsonl", "b/test.jsonl"))
    with pytest.raises(ValueError, match=r"name one of a/test\.jsonl, b/test\.jsonl as org/data/FILE"):
        read_questions("org/data")
    monkeypatch.setattr(Hub, "there", ("README.md",))
    with pytest.raises(ValueError, match="0 files that may hold questions; it has none"):
        read_questions("org/data")


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow"), ConnectionError("down")])
def test_no_network(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def unreachable(*_: Any, **__: Any):
        raise error

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "list_repo_files", unreachable)
    with pytest.raises(ValueError, match="the hub cannot be reached"):
        read_questions("org/data")


def test_a_cached_data_set_is_read_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repo, commit = tmp_path / "datasets--org--data", "0" * 40
    (snapshot := repo / "snapshots" / commit / "all").mkdir(parents=True)
    (snapshot / "test.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    assert read_questions("org/data") == read_questions("org/data/all/test.jsonl") == [Question(("a",))]
    assert capsys.readouterr().err.endswith("so only files in its cache are found: all/test.jsonl\n")


def test_no_hub_to_reach():
    with pytest.raises(ValueError, match="in the hub's cache, and the hub cannot be reached"):
        read_questions("org/no-such-data-set")
