"""Generated texts, round by round, with their trees: what the page's script draws."""

from collections.abc import Sequence
from typing import Any

from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.report.runs import Run


def to_json(runs: Sequence[Run], questions: int) -> list[dict[str, Any]]:
    """An entry a run: its title, and the answers to its first questions by every method."""
    return [
        {
            "title": run.title,
            "questions": [
                {
                    "title": _title(run, number),
                    "methods": {answer.method: _turns(answer) for answer in run.answers if answer.question == number},
                }
                for number in sorted({answer.question for answer in run.answers})[:questions]
            ],
        }
        for run in runs
    ]


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """One answer: what was asked, prefill's piece, and the rounds.

    A round has its pieces, the number of them that were accepted drafts, and its tree: words, parents, confidences in
    hundredths, and which nodes were accepted.
    """
    rounds, at = [], 1
    for index, row in enumerate(turn.rounds):
        committed, accepted = row[0], row[1]
        tree = turn.trees[index] if turn.trees else None
        rounds.append(
            {"pieces": turn.pieces[at : at + committed], "accepted": accepted, "tree": tree and _tree(turn, tree)}
        )
        at += committed
    return {"asked": turn.asked, "first": turn.pieces[:1], "rounds": rounds}


def _tree(turn: Turn, tree: dict[str, list]) -> dict[str, list]:
    return {
        "words": [turn.words.get(str(token), f"⟨{token}⟩") for token in tree["token"]],
        "parents": tree["parent"],
        "log": tree["log_confidence"],
        "accepted": [node for node, is_accepted in enumerate(tree["accepted"]) if is_accepted],
    }


def _turns(answer: Answer) -> list[dict[str, Any]]:
    return [turn_to_json(turn) for turn in answer.turns]


def _title(run: Run, number: int) -> str:
    answer = next(answer for answer in run.answers if answer.question == number)
    named = f"question {number if answer.question_id is None else answer.question_id}"
    return f"{named}, {answer.category}" if answer.category else named
