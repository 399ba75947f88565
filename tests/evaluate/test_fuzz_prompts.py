"""Prompt files from strangers: they are read whole, or refused in one sentence that names the file and the line."""

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxspec.evaluate.questions import read_questions

LINES: tuple[dict[str, Any], ...] = (
    {"prompt": "def f(", "question_id": 1, "category": "code"},
    {"turns": ["one", "two"], "reference": ["1", "2"]},
    {"task_id": "HumanEval/0", "prompt": "def f(", "entry_point": "f"},
    {"question": "1 + 1?", "answer": "so\n#### 2"},
    {"document": "long", "summary": "short"},
    {"article": "long", "highlights": "short", "id": "a"},
    {"instruction": "say", "input": "it", "output": "it"},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=4,
)
SETTINGS = hypothesis.settings(
    max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], deadline=None
)


def read(file: Path, content: bytes, suffix: str = ".jsonl") -> None:
    """Reads a file, or meets one sentence that names it."""
    (named := file.with_suffix(suffix)).write_bytes(content)
    said, questions = "", []
    try:
        questions = read_questions(named)
    except ValueError as error:
        said = str(error)
    if said:
        assert named.name in said and "\n" not in said and len(said) < 1000
    else:
        assert questions and all(isinstance(turn, str) for question in questions for turn in question.turns)


@SETTINGS
@hypothesis.given(line=st.sampled_from(LINES), data=st.data(), value=VALUES)
def test_a_strange_value(line: dict[str, Any], data: st.DataObject, value: Any, tmp_path: Path):
    changed = {**line, data.draw(st.sampled_from(sorted(line))): value}
    read(tmp_path / "file", (json.dumps(line) + "\n" + json.dumps(changed) + "\n").encode())


@SETTINGS
@hypothesis.given(content=st.binary(max_size=60))
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
def test_bytes(suffix: str, content: bytes, tmp_path: Path):
    read(tmp_path / "file", content, suffix)


@SETTINGS
@hypothesis.given(line=st.sampled_from(LINES), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit(line: dict[str, Any], at: float, bit: int, tmp_path: Path):
    content = bytearray((json.dumps(line) + "\n").encode())
    content[int(at * len(content))] ^= 1 << bit
    read(tmp_path / "file", bytes(content))
