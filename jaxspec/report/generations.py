"""Data of generated texts, round by round with their trees, which the page's script draws."""

from collections.abc import Sequence
from typing import Any

from jaxspec.evaluate.runlog import Turn
from jaxspec.report.runs import Run


def to_json(runs: Sequence[Run], questions: int) -> list[dict[str, Any]]:
    """An entry a run: its title, and the answers to its first questions by every method."""
    numbers = lambda run: sorted({answer.question for answer in run.answers})[:questions]
    return [{"title": run.title, "questions": [_question(run, number) for number in numbers(run)]} for run in runs]


def _question(run: Run, number: int) -> dict[str, Any]:
    answers = [answer for answer in run.answers if answer.question == number]
    first = answers[0]
    title = f"question {number if first.question_id is None else first.question_id}"
    return {
        "title": f"{title}, {first.category}" if first.category else title,
        "methods": {answer.method: [turn_to_json(turn) for turn in answer.turns] for answer in answers},
    }


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """One answer: what was asked, prefill's piece, and the rounds.

    A round has its pieces, the number of them that were accepted drafts, and its tree: words, parents, confidences in
    hundredths, and which nodes were accepted.
    """
    rounds, at = [], 1
    for (committed, accepted, *_), tree in zip(turn.rounds, turn.trees or (), strict=True):
        rounds.append({"pieces": turn.pieces[at : at + committed], "accepted": accepted, "tree": _tree(turn, tree)})
        at += committed
    return {"asked": turn.asked, "first": turn.pieces[:1], "rounds": rounds}


def _tree(turn: Turn, tree: dict[str, list]) -> dict[str, list]:
    return {
        "words": [turn.words.get(str(token), f"⟨{token}⟩") for token in tree["token"]],
        "parents": tree["parent"],
        "log": tree["log_confidence"],
        "accepted": [node for node, is_accepted in enumerate(tree["accepted"]) if is_accepted],
    }
