"""benchmarks/builtin_prompts.py: the prompts that it cuts are those that are committed."""

import importlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.evaluate.questions import read_questions
from jaxspec.train.data import text

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FILE = BENCHMARKS / "package_prompts.jsonl"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("builtin_prompts")


def test_what_is_committed_is_what_these_versions_give(script: Any):
    committed = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    for category in {prompt["category"] for prompt in committed}:
        package, version = category.split()
        if (installed := metadata.version(package)) != version:
            pytest.skip(f"the prompts are of {category}, and {installed} is installed")
    assert list(script.of_packages()) == committed


def test_the_prompts_of_builtin_are_those_of_this_python(script: Any):
    if platform.python_version() != "3.11.7":
        pytest.skip(f"the prompts are of CPython 3.11.7, and this is {platform.python_version()}")
    documents = text.standard_library()
    held_out = script.chosen(documents, script.PROMPTS)
    committed = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert list(script.of_standard_library(held_out)) == committed


def test_they_are_spread_over_files_and_packages(script: Any):
    questions = read_questions(FILE)
    assert len(questions) == 16
    assert [str(question.category).split()[0] for question in questions] == 2 * list(script.PACKAGES)
    prompts = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    assert len({prompt["file"] for prompt in prompts}) == 16
    assert {prompt["license"] for prompt in prompts} == {"Apache-2.0", "BSD-3-Clause"}


def test_the_choice_goes_by_crc_and_length(script: Any):
    long = [text.Document(f"{name}.py", f"{name} = 0\n" * 1000) for name in "abcde"]
    short = text.Document("f.py", "f = 0\n")
    found = script.chosen([*long, short], 3)
    assert found == script.chosen([short, *reversed(long)], 3)
    assert [document.name for document in found] == ["e.py", "c.py", "b.py"]


def test_a_prompt_is_whole_lines_from_the_middle(script: Any):
    lines = [f"line = {i}\n" for i in range(300)]
    prompt = script.prompt_of(text.Document("a.py", "".join(lines)))
    assert prompt.startswith("line = 100\n") and prompt.endswith("\n")
    assert script.CHARACTERS <= len(prompt) < script.CHARACTERS + len(lines[-1])
    assert script.prompt_of(text.Document("a.py", "x" * 3000)) == ""  # one line, after which nothing would come
