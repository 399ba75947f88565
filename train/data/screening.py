"""Which generated texts are kept: few that loop or repeat others, none that is empty or near given questions."""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.evaluate.questions import read_questions

Gram = tuple[str, ...]
SHARED, WHOLE = 13, 8  # words in a row that two texts may not share; shorter turns are compared whole, from 8 words on
LOOP, TAIL = 0.5, 48  # a text loops if fewer of its 4-grams, or of those of its last words, are distinct
FRESH = 0.2  # share of a text's 4-grams that no text before had
LEFT_OUT = "left_out"  # key of a line of the log, whose value is the reason


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def grams(words: Sequence[str], length: int = 4) -> list[Gram]:
    """All runs of `length` words."""
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]


def loops(words: Sequence[str]) -> bool:
    """Whether a text repeats itself, on the whole or at its end."""
    distinct = lambda runs: len(set(runs)) / len(runs) if runs else 1.0
    return min(distinct(grams(words)), distinct(grams(words[-TAIL:]))) < LOOP


def of_questions(files: Iterable[str | Path]) -> set[Gram]:
    """Runs of words of all turns and worked answers of question files. Raises ValueError as `read_questions`."""
    runs: set[Gram] = set()
    for file in files:
        for question in read_questions(file):
            for text in (*question.turns, *question.worked):
                words = words_of(text)
                runs.update(grams(words, min(SHARED, len(words))) if len(words) >= WHOLE else ())
    return runs


@dataclasses.dataclass
class Screen:
    """Leaves out texts, and counts 4-grams of generated words in the texts that are kept."""

    excluded: set[Gram]  # of `of_questions`
    most_loops: float = 1.0  # largest share of kept texts that loop
    repeats: bool = True  # keep texts whose 4-grams other texts have, too
    texts: int = 0
    looping: int = 0
    total: int = 0
    seen: set[Gram] = dataclasses.field(default_factory=set)

    def screened(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line of a text, which counts from now on; or one with the reason why it is left out."""
        own, whole = _words(line)
        runs = grams(own)
        if not (line["messages"][-1]["content"] if "messages" in line else line["text"]).strip():
            return {LEFT_OUT: "empty"}  # which training refuses
        if any(not self.excluded.isdisjoint(grams(words, length)) for words in whole for length in self._lengths):
            return {LEFT_OUT: "near an excluded question"}
        if not self.repeats and runs and sum(each not in self.seen for each in runs) < FRESH * len(runs):
            return {LEFT_OUT: "repeating other texts"}
        if (looping := loops(own)) and self.looping + 1 > self.most_loops * (self.texts + 1):
            return {LEFT_OUT: "looping"}
        self.texts, self.looping, self.total = self.texts + 1, self.looping + looping, self.total + len(runs)
        self.seen.update(runs)
        return line

    @functools.cached_property
    def _lengths(self) -> set[int]:
        return {len(each) for each in self.excluded}

    def summary(self, lines: Iterable[dict[str, Any]]) -> str:
        """What was measured, and how many of the lines were left out, in words."""
        counts = Counter(line[LEFT_OUT] for line in lines if LEFT_OUT in line)
        left = ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) or "none"
        distinct, looping = len(self.seen) / max(self.total, 1), self.looping / max(self.texts, 1)
        return f"{distinct:.0%} of their 4-grams are distinct, {looping:.0%} of the texts loop; left out: {left}"


def _words(line: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The generated words, and the words of each message, or of the whole text."""
    if "messages" in line:
        whole = [words_of(message["content"]) for message in line["messages"]]
        return whole[-1], whole
    return words_of(line["text"].removeprefix(line["prompt"])), [words_of(line["text"])]
