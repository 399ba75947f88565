"""The questions of a prompt file, and their prompts."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from jaxspec.engine.prompts import Prompt
from jaxspec.evaluate import files, formats
from jaxspec.evaluate.formats import Question


def read_questions(path: str | Path, limit: int | None = None, shots: int = 0) -> list[Question]:
    """Reads the first `limit` questions of a file: `{"turns": [...]}` or `{"prompt": ...}` a line, or as published.

    A line may have worked answers: `"reference": [...]`, one a turn, or `"answer": "..."`. Other keys are ignored.
    `formats.py` lists the published formats, `files.py` what may hold them. `builtin` is the file of held-out Python
    that comes with the package.

    Args:
        path: of the file, or its hub id.
        shots: worked examples put before every question: the first questions that have an answer, which are then not
            asked, nor counted in `limit`.

    Raises:
        ValueError: no readable file, no question in it, a line of another shape, which is named, or too few questions
            for so many examples.
    """
    if shots < 0:
        raise ValueError(f"--shots must be 0 or above, not {shots}")
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, not {limit}")
    questions = (formats.read(values, where) for where, values in files.records(path))
    first = next(questions, None)
    if first is None:
        raise ValueError(f"the prompt file {path} holds no questions")
    questions = itertools.chain([first], questions)
    if shots:
        questions = _with_examples(list(questions), shots, path)
    return list(itertools.islice(questions, limit))


def next_prompt(question: Question, answers: Sequence[str], chat: bool) -> Prompt:
    """The prompt of the turn after `answers`: messages for a chat template, else turns and answers as one raw text."""
    turns = question.turns[: len(answers) + 1]
    if chat:
        exchanges = [*question.examples, *zip(turns, answers, strict=False)]
        pairs = [({"role": "user", "content": t}, {"role": "assistant", "content": a}) for t, a in exchanges]
        return [*itertools.chain(*pairs), {"role": "user", "content": turns[-1]}]
    examples = "".join(f"{turn}\n{answer}\n\n" for turn, answer in question.examples)
    # The model continues a turn where it ends; the next turn starts on a line of its own.
    return examples + turns[0] + "".join(f"{answer}\n{turn}" for answer, turn in zip(answers, turns[1:], strict=True))


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
