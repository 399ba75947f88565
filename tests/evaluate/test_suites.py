"""Prompt files, and the prompts that conversations come to."""

from pathlib import Path

import pytest

from jaxspec.evaluate.suites import Question, next_prompt, read_questions


def read(tmp_path: Path, text: str, limit: int | None = None) -> list[Question]:
    file = tmp_path / "questions.jsonl"
    file.write_text(text, encoding="utf-8")
    return read_questions(file, limit)


def test_both_shapes(tmp_path: Path):
    text = '{"turns": ["a", "b"], "question_id": 81, "category": "math", "x": 1}\n\n{"prompt": "c"}\n'
    assert read(tmp_path, text) == [Question(("a", "b"), 81, "math"), Question(("c",))]
    assert read(tmp_path, text, limit=1) == [Question(("a", "b"), 81, "math")]
    assert len(read(tmp_path, text, limit=9)) == 2


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
    with pytest.raises(ValueError, match="limit on questions must be at least 1, not 0"):
        read(tmp_path, '{"prompt": "a"}\n', limit=0)


def test_conversations():
    question = Question(("Who?", "Why?"))
    assert next_prompt(question, [], chat=False) == "Who?"
    assert next_prompt(question, [" Me."], chat=False) == "Who? Me.\nWhy?"
    assert next_prompt(question, ["Me."], chat=True) == [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Me."},
        {"role": "user", "content": "Why?"},
    ]
