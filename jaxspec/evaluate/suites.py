"""Prompt files: JSONL, a question a line, in MT-bench's shape or simpler."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.bundled import locate_prompts
from jaxspec.prompts import Prompt


@dataclasses.dataclass(frozen=True)
class Question:
    """What one line of a prompt file asks.

    Attributes:
        turns: what the user says, one answer after each.
        question_id, category: as the file has them; None where it has none.
    """

    turns: tuple[str, ...]
    question_id: int | str | None = None
    category: str | None = None


def read_questions(path: str | Path, limit: int | None = None) -> list[Question]:
    """Reads the first `limit` questions of a file: `{"turns": [...]}` or `{"prompt": ...}` a line, other keys ignored.

    `builtin` is the file of held-out Python that comes with the package.

    Raises:
        ValueError: no readable file, no question in it, or a line of another shape, which is named.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"the limit on questions must be at least 1, not {limit}")
    try:
        lines = locate_prompts(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"the prompt file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt file {path} is not UTF-8 text: {error}") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise ValueError(f"the prompt file {path} holds no questions")
    return [_question(line, f"{path}, line {number}") for number, line in filled[:limit]]


def next_prompt(question: Question, answers: Sequence[str], chat: bool) -> Prompt:
    """The prompt of the turn after `answers`: messages for a chat template, else turns and answers as one raw text."""
    said = question.turns[: len(answers) + 1]
    if chat:
        messages = [{"role": "user", "content": said[0]}]
        for answer, turn in zip(answers, said[1:], strict=True):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return messages
    # The model continues a turn where it ends; the next turn starts on a line of its own.
    return said[0] + "".join(f"{answer}\n{turn}" for answer, turn in zip(answers, said[1:], strict=True))


def _question(line: str, where: str) -> Question:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(values, dict) or not values.keys() & {"turns", "prompt"}:
        raise ValueError(f'{where}: a question is {{"turns": ["..."]}} or {{"prompt": "..."}}')
    turns: Any = values["turns"] if "turns" in values else [values["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: turns are a list of at least one string, and a prompt is a string")
    return Question(turns=tuple(turns), question_id=values.get("question_id"), category=values.get("category"))
