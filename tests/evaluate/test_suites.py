"""Prompt files, and the prompts of conversations."""

import json
from pathlib import Path

import pytest

from jaxspec.checkpoint.builtin import QUESTIONS
from jaxspec.evaluate.questions import Question, next_prompt, read_questions


def read(tmp_path: Path, text: str, limit: int | None = None) -> list[Question]:
    file = tmp_path / "questions.jsonl"
    file.write_text(text, encoding="utf-8")
    return read_questions(file, limit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n  \n", "questions.jsonl holds no questions"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
        ('\n["a"]\n', "line 2: a question is"),
        ('{"text": "a"}\n', "line 1: a question is"),
        ('{"prompt": 3}\n', "line 1: turns are a list"),
        ('{"turns": []}\n', "line 1: turns are a list"),
        ('{"turns": "ab"}\n', "line 1: turns are a list"),
        ('{"turns": ["a", null]}\n', "line 1: turns are a list"),
    ],
)
def test_a_bad_file_is_refused_by_line(text: str, says: str, tmp_path: Path):
    with pytest.raises(ValueError, match=says):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ValueError, match=r"missing\.jsonl cannot be read: No such file"):
        read_questions(tmp_path / "missing.jsonl")
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(ValueError, match="latin is not UTF-8"):
        read_questions(tmp_path / "latin")
    with pytest.raises(ValueError, match="--limit must be at least 1, not 0"):
        read(tmp_path, '{"prompt": "a"}\n', limit=0)


WORKED = """
{"prompt": "1+1?", "answer": "2"}
{"turns": ["a?", "b?"]}
{"turns": ["2+2?", "3+3?"], "reference": ["4", "6"]}
{"prompt": "3+4?", "answer": "7"}
{"prompt": "c?", "answer": 5, "category": "number"}
"""


def shots(tmp_path: Path, number: int, limit: int | None = None) -> list[Question]:
    file = tmp_path / "worked.jsonl"
    file.write_text(WORKED, encoding="utf-8")
    return read_questions(file, limit, number)


def test_the_first_questions_with_an_answer_become_examples(tmp_path: Path):
    examples = (("1+1?", "2"), ("2+2?", "4"), ("3+3?", "6"))
    asked = shots(tmp_path, 2)
    assert [question.turns for question in asked] == [("a?", "b?"), ("3+4?",), ("c?",)]
    assert all(question.examples == examples for question in asked)
    assert asked[2].category == "number"
    assert shots(tmp_path, 2, limit=1) == asked[:1]  # of those that are asked
    assert [question.examples for question in shots(tmp_path, 0)] == [()] * 5


def test_examples_stand_before_the_first_turn(tmp_path: Path):
    question = shots(tmp_path, 1)[0]
    assert next_prompt(question, [], chat=False) == "1+1?\n2\n\na?"
    assert next_prompt(question, [" yes"], chat=False) == "1+1?\n2\n\na? yes\nb?"
    said = [("user", "1+1?"), ("assistant", "2"), ("user", "a?"), ("assistant", "yes"), ("user", "b?")]
    assert next_prompt(question, ["yes"], chat=True) == [{"role": role, "content": text} for role, text in said]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("question", "answer"), "Question: a\nAnswer: b\n#### 2\n\nQuestion: c\nAnswer:"),  # as the harness's gsm8k
        (("document", "summary"), "Article: a\nSummary: b\n#### 2\n\nArticle: c\nSummary:"),  # as Draft & Verify's code
        (("problem", "solution", "answer"), "Problem:\na\n\nSolution:\nb\n#### 2\n\nProblem:\nc\n\nSolution:"),
    ],
)
def test_an_example_has_its_answer_where_the_format_has_it(keys: tuple[str, ...], text: str, tmp_path: Path):
    file = tmp_path / "twice.jsonl"
    lines = (json.dumps(dict(zip(keys, (asked, "b\n#### 2", "2"), strict=False))) for asked in "ac")
    file.write_text("\n".join(lines), encoding="utf-8")
    assert next_prompt(read_questions(file, shots=1)[0], [], chat=False) == text


def test_too_few_answers_for_the_examples(tmp_path: Path):
    with pytest.raises(ValueError, match=r"4 shots need as many .* \(a key reference or answer\), .* has 3"):
        shots(tmp_path, 4)
    with pytest.raises(ValueError, match="shots must be 0 or above, not -1"):
        shots(tmp_path, -1)
    file = tmp_path / "all.jsonl"
    file.write_text('{"prompt": "a", "reference": "b"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="no questions besides its worked examples"):
        read_questions(file, shots=1)


@pytest.mark.parametrize(
    ("name", "count", "turns", "suite", "first"),
    [
        ("mt-bench", 80, 2, None, "Compose an engaging travel blog post"),
        ("gsm8k", 80, 1, "gsm8k", "Janet\u2019s ducks lay 16 eggs per day"),
        ("humaneval", 80, 1, "humaneval", "from typing import List"),
        ("summaries", 20, 1, None, "Summarize: "),
        ("translations", 40, 1, None, "Translate German to English: Es war einmal"),
    ],
)
def test_files_of_the_package_have_names(name: str, count: int, turns: int, suite: str | None, first: str):
    questions = read_questions(name)
    assert len(questions) == count == len({question.turns for question in questions})
    assert questions[0].turns[0].startswith(first)
    assert {(len(question.turns), question.suite) for question in questions} == {(turns, suite)}
    assert len({question.question_id for question in questions}) == count
    assert f"\n{name}  " in (QUESTIONS / "SOURCES.txt").read_text(encoding="utf-8")


def test_a_path_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("gsm8k").write_text('{"prompt": "mine"}\n', encoding="utf-8")
    assert [question.turns for question in read_questions("gsm8k")] == [("mine",)]
    with pytest.raises(ValueError, match=r"prompt file \.\./questions/gsm8k cannot be read"):
        read_questions("../questions/gsm8k")
    assert sum(file.stat().st_size for file in QUESTIONS.iterdir()) < 250_000
