"""Prompt files: JSONL, a question a line, in MT-bench's shape or simpler."""

import dataclasses
import itertools
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
        worked: the file's own answers to the first of the turns; mostly none.
        examples: (turn, answer) of other questions, to be put before the first turn.
    """

    turns: tuple[str, ...]
    question_id: int | str | None = None
    category: str | None = None
    worked: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()


def read_questions(path: str | Path, limit: int | None = None, shots: int = 0) -> list[Question]:
    """Reads the first `limit` questions of a file: `{"turns": [...]}` or `{"prompt": ...}` a line.

    A line may have worked answers: `"reference": [...]`, one a turn, or `"answer": "..."`. Other keys are ignored.
    `builtin` is the file of held-out Python that comes with the package.

    Args:
        shots: worked examples put before every question: the first questions that have an answer, which are then not
            asked, nor counted in `limit`.

    Raises:
        ValueError: no readable file, no question in it, a line of another shape, which is named, or too few questions
            for so many examples.
    """
    if shots < 0:
        raise ValueError(f"the number of shots must be 0 or above, not {shots}")
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
    questions = (_question(line, f"{path}, line {number}") for number, line in filled)
    if shots:
        questions = _with_examples(list(questions), shots, path)
    return list(itertools.islice(questions, limit))


def next_prompt(question: Question, answers: Sequence[str], chat: bool) -> Prompt:
    """The prompt of the turn after `answers`: messages for a chat template, else turns and answers as one raw text."""
    said = question.turns[: len(answers) + 1]
    if chat:
        exchanges = [*question.examples, *zip(said, answers, strict=False)]
        pairs = [({"role": "user", "content": t}, {"role": "assistant", "content": a}) for t, a in exchanges]
        return [*itertools.chain(*pairs), {"role": "user", "content": said[-1]}]
    examples = "".join(f"{turn}\n{answer}\n\n" for turn, answer in question.examples)
    # The model continues a turn where it ends; the next turn starts on a line of its own.
    return examples + said[0] + "".join(f"{answer}\n{turn}" for answer, turn in zip(answers, said[1:], strict=True))


def _with_examples(questions: Sequence[Question], shots: int, path: str | Path) -> list[Question]:
    """The questions left when the first `shots` that have a worked answer stand as examples before each of them."""
    worked = [question for question in questions if question.worked][:shots]
    if len(worked) < shots:
        raise ValueError(
            f"{shots} shots need as many questions with a worked answer (a key reference or answer), and the prompt "
            f"file {path} has {len(worked)}"
        )
    examples = tuple(exchange for each in worked for exchange in zip(each.turns, each.worked, strict=False))
    left = [dataclasses.replace(each, examples=examples) for each in questions if each not in worked]
    if not left:
        raise ValueError(f"the prompt file {path} has no question left beside its worked examples")
    return left


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
    return Question(
        turns=tuple(turns),
        question_id=values.get("question_id"),
        category=values.get("category"),
        worked=_worked(values),
    )


def _worked(values: dict[str, Any]) -> tuple[str, ...]:
    """The worked answers of a line; () where there are none, or they are no text."""
    given: Any = values.get("reference", values.get("answer"))
    given = [given] if isinstance(given, str) else given
    filled = isinstance(given, list) and all(isinstance(answer, str) and answer.strip() for answer in given)
    return tuple(given) if filled else ()
