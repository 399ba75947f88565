"""The published formats of prompt files, recognised by their keys. None of their text comes with jaxspec.

| suite | keys of a question | as published by |
|---|---|---|
| `gsm8k` | question, answer, which ends in #### and a number | GSM8K (arXiv:2110.14168) |
| `humaneval` | task_id, prompt, entry_point | HumanEval (arXiv:2107.03374) |
| `xsum` | document, summary | XSum (arXiv:1808.08745) |
| `cnn-dm` | article, highlights | CNN/DM (arXiv:1704.04368) |
| `alpaca` | instruction, input | Alpaca's data and AlpacaEval |
| none | turns, category, question_id, reference | MT-bench (arXiv:2306.05685), Spec-Bench (arXiv:2401.07851) |
| none | prompt, answer | jaxspec's own |
"""

import dataclasses
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Values = Mapping[str, Any]
FINAL = re.compile(r"####\s*(-?[.,]*[0-9][0-9.,]*)\s*$")
"""The end of an answer of GSM8K, and its number."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question: one line of a prompt file.

    Attributes:
        turns: the user's messages; each gets one answer.
        question_id: the file's id; None without one.
        category: its name; None without one.
        worked: the file's own answers to the first turns; often none.
        examples: (turn, answer) of other questions, to put before the first turn.
        suite: the name of its published format; None for the general formats.
    """

    turns: tuple[str, ...]
    question_id: int | str | None = None
    category: str | None = None
    worked: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    suite: str | None = None


@dataclasses.dataclass(frozen=True)
class Format:
    """A published format.

    Attributes:
        suite: the format's name.
        keys: keys that every question has; their values are strings.
        turn: makes the user's message. Summaries and GSM8K use the papers' few-shot form, in which a label precedes
            the answer.
        answer: the key of the worked answer; None without one.
        id: the key of the question's id.
        ends: a pattern that the end of the worked answer must match.
        more: keys that a question may have besides; their values are strings too.
    """

    suite: str
    keys: tuple[str, ...]
    turn: Callable[[Values], str]
    answer: str | None = None
    id: str = "id"
    ends: re.Pattern[str] = re.compile("$")
    more: tuple[str, ...] = ()

    def holds(self, values: Values) -> bool:
        """Whether a question is in this format."""
        texts = all(isinstance(values.get(key), str) for key in self.keys)
        texts &= all(isinstance(values.get(key), str | None) for key in self.more)
        return texts and (self.answer is None or self.ends.search(values[self.answer]) is not None)


FORMATS = (
    Format("humaneval", ("task_id", "prompt", "entry_point"), lambda v: v["prompt"], id="task_id"),
    Format(
        "gsm8k", ("question", "answer"), lambda v: f"Question: {v['question']}\nAnswer:", answer="answer", ends=FINAL
    ),
    Format("xsum", ("document", "summary"), lambda v: f"Article: {v['document']}\nSummary:", answer="summary"),
    Format("cnn-dm", ("article", "highlights"), lambda v: f"Article: {v['article']}\nSummary:", answer="highlights"),
    Format(
        "alpaca",
        ("instruction",),
        lambda v: "\n".join(filter(None, (v["instruction"], v.get("input")))),
        more=("input",),
    ),
)


def read(values: Any, where: str) -> Question:
    """The question in a line's JSON value, in any of the formats.

    Args:
        where: the line's place, for the error message.

    Raises:
        ValueError: the line has no known format.
    """
    if not isinstance(values, dict):
        raise ValueError(f'{where}: a question is {{"turns": ["..."]}} or {{"prompt": "..."}}')
    for form in FORMATS:
        if form.holds(values):
            worked = (values[form.answer],) if form.answer else ()
            name = _name(values, form.id, where)
            return Question((form.turn(values),), name, _category(values), worked, suite=form.suite)
    if not values.keys() & {"turns", "prompt"}:
        raise ValueError(
            f'{where}: a question is {{"turns": ["..."]}} or {{"prompt": "..."}}, or has the keys of a published '
            f"format ({'; '.join(f'{form.suite}: ' + ', '.join(form.keys) for form in FORMATS)}; an answer of GSM8K "
            "ends in #### and a number)"
        )
    turns: Any = values["turns"] if "turns" in values else [values["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: turns are a list of at least one string, and a prompt is a string")
    worked = _worked(values)
    return Question(
        turns=tuple(turns),
        question_id=_name(values, "question_id", where),
        category=_category(values),
        worked=worked,
        # GSM8K is often distributed in MT-bench's format; the answers' end identifies it.
        suite="gsm8k" if len(turns) == len(worked) == 1 and FINAL.search(worked[0]) else None,
    )


def _name(values: Values, key: str, where: str) -> int | str | None:
    """The id of a line; None without one. Raises ValueError unless it is a string or a whole number."""
    given: Any = values.get(key)
    if not isinstance(given, int | str | None):
        raise ValueError(f"{where}: {key} must be a string or a whole number, not {reprlib.repr(given)}")
    return given


def _category(values: Values) -> str | None:
    """The category of a line, as text; None if there is none, or it is not a string or a number."""
    given: Any = values.get("category")
    return str(given) if isinstance(given, str | int | float) else None


def _worked(values: Values) -> tuple[str, ...]:
    """The worked answers of a line; () if there are none, or they are not text."""
    given: Any = values.get("reference", values.get("answer"))
    given = [given] if isinstance(given, str) else given
    filled = isinstance(given, list) and all(isinstance(answer, str) and answer.strip() for answer in given)
    return tuple(given) if filled else ()
