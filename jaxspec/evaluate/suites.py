"""The questions of a prompt file, and their prompts."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from jaxspec.engine.prompts import Prompt
from jaxspec.evaluate import files, formats
from jaxspec.evaluate.formats import Question


def read_questions(path: str | Path, limit: int | None = None, shots: int = 0) -> list[Question]:
    """Reads the first `limit` questions of a file: `{"turns": [...]}` or `{"prompt": ...}` per line, or a published
    format.

    A line may have worked answers: `"reference": [...]`, one per turn, or `"answer": "..."`. Other keys are ignored.
    `formats.py` lists the published formats, `files.py` the kinds of files. `builtin` is the package's own file of
    held-out Python.

    Args:
        path: a path, or a hub id.
        limit: number of questions; None: all.
        shots: number of worked examples before every question. They are the first questions with an answer; these are
            not asked, and do not count in `limit`.

    Raises:
        ValueError: the file cannot be read or has no question, a line has another format (the message names it), or
            there are too few questions for the examples.
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
    """The prompt of the turn after `answers`: messages if `chat`, otherwise turns and answers as one text."""
    turns = question.turns[: len(answers) + 1]
    if chat:
        exchanges = [*question.examples, *zip(turns, answers, strict=False)]
        pairs = [({"role": "user", "content": t}, {"role": "assistant", "content": a}) for t, a in exchanges]
        return [*itertools.chain(*pairs), {"role": "user", "content": turns[-1]}]
    examples = "".join(f"{turn}\n{answer}\n\n" for turn, answer in question.examples)
    # The model continues right after a turn; the next turn starts on a new line.
    return examples + turns[0] + "".join(f"{answer}\n{turn}" for answer, turn in zip(answers, turns[1:], strict=True))


def _with_examples(questions: Sequence[Question], shots: int, path: str | Path) -> list[Question]:
    """The questions with `shots` examples each. The examples are the first questions with a worked answer, which are
    removed."""
    worked = [question for question in questions if question.worked][:shots]
    if len(worked) < shots:
        raise ValueError(
            f"{shots} shots need as many questions with a worked answer (a key reference or answer), and the prompt "
            f"file {path} has {len(worked)}"
        )
    examples = tuple(exchange for each in worked for exchange in zip(each.turns, each.worked, strict=False))
    left = [dataclasses.replace(each, examples=examples) for each in questions if each not in worked]
    if not left:
        raise ValueError(f"the prompt file {path} has no questions besides its worked examples")
    return left
