"""`OUT.jsonl`: one line per question and method. A killed run resumes from it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxspec.engine.recorded_rounds import Round
from jaxspec.evaluate.reliability import tally
from jaxspec.host.json_lines import LineLog
from jaxspec.host.processes import is_first, of_first


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of one method.

    Attributes:
        prompt: token ids that it answers.
        tokens: token ids of the answer.
        rounds: [rounds][6] counts, see `round_counts.to_rows`; [rounds][5] in logs of earlier versions.
        trees: of each round, as `tree_to_json` writes them; None if this was read back from a log, and in logs of
            earlier versions where a pass of its own for the trees took other rounds.
        prefill_seconds, decode_seconds: of the whole batch that this answer was in, a number a repeat.
        learnt: what the controller had learnt at the end: for each repeat, the arrays of its state.
        calibration: `reliability.tally` of the trees; empty where that is not known.
        asked: what the user said in this turn, as text.
        pieces: the answer's text, token by token; words: text of every token in the trees, by its id. Empty where there
            is no tokenizer, or in logs of earlier versions.
    """

    prompt: list[int]
    tokens: list[int]
    text: str
    rounds: list[list[int]]
    trees: list[dict[str, list]] | None
    prefill_seconds: list[float]
    decode_seconds: list[float]
    learnt: list[list] = dataclasses.field(default_factory=list)
    calibration: list[list[float]] = dataclasses.field(default_factory=list)
    asked: str = ""
    pieces: list[str] = dataclasses.field(default_factory=list)
    words: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one method did with one question: a line of the log.

    Attributes:
        question: its number in the file, from 0.
        batch: number of the batch that it was decoded in; batches are whole in the log, or not there.
        quality: scores of the answer, see `quality.score`; empty where its suite has none.
    """

    question: int
    question_id: int | str | None
    category: str | None
    method: str
    batch: int
    turns: list[Turn]
    quality: dict[str, float] = dataclasses.field(default_factory=dict)


class RunLog:
    """Answers and final measurements of one run, on disk too where it has a path.

    Every process has all of them; the first alone reads and writes the file.

    Args:
        path: of the log; None keeps nothing.
        settings: everything that the numbers depend on; a log with others is refused.
        is_whole: whether these answers are all that one batch yields.

    Raises:
        ValueError: the file is another run's, or no log.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], is_whole: Callable[[list[Answer]], bool]):
        self.measured, self.answers = None, list[Answer]()
        self.log = None if path is None else LineLog(path, "the log of a bench run", "another file")
        if self.log is None:
            return
        self.measured, answers = of_first(partial(_resume, self.log, settings, is_whole))
        self.answers = [_answer(line) for line in answers]

    def add(self, answers: Sequence[Answer]) -> None:
        """Adds one whole batch."""
        self.answers += answers
        if self.log is not None and is_first():
            self.log.append(map(dataclasses.asdict, answers))

    def finish(self, measured: dict[str, Any]) -> None:
        """Adds what was measured once, after the last batch."""
        self.measured = json.loads(json.dumps(measured))  # as it will be read back
        if self.log is not None and is_first():
            self.log.append([{"measured": measured}])


def read_finished(path: Path) -> tuple[dict[str, Any], list[Answer], dict[str, Any]]:
    """What a run was, its answers with their trees, and what it measured, from the log of a finished run.

    Raises:
        ValueError: the file is no log, or its run was not finished.
    """
    lines = LineLog(path, "the log of a bench run", "another file").lines()
    measured = next((line["measured"] for line in lines if "measured" in line), None)
    if measured is None:
        raise ValueError(f"{path} is the log of a run that was not finished; run the same `jaxspec bench` again")
    answers = [_answer(line, trees=True) for line in lines if "question" in line]
    return lines[0]["settings"], answers, measured


def log_of(out: Path) -> Path:
    """The log beside a file of results."""
    return Path(f"{out}.jsonl")


def tree_to_json(round_: Round) -> dict[str, list]:
    """A round's tree and verdict: live nodes, the root first; what was accepted; what it committed."""
    return {
        "token": round_.token.tolist(),
        "parent": round_.parent.tolist(),
        "log_confidence": [round(x, 4) for x in round_.log_confidence.tolist()],
        "accepted": round_.accepted.astype(int).tolist(),
        "committed": round_.committed,
    }


def _resume(
    log: LineLog, settings: dict[str, Any], is_whole: Callable[[list[Answer]], bool]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What was measured, and the answers of whole batches, without trees; the file holds no others after that."""
    lines = log.read(settings)
    answers = [(line, _answer(line)) for line in lines if "question" in line]
    batches: dict[int, list[Answer]] = {}
    for _, answer in answers:
        batches.setdefault(answer.batch, []).append(answer)
    whole = {batch for batch, members in batches.items() if is_whole(members)}
    measured = next((line["measured"] for line in lines if "measured" in line), None)
    kept = [(line, answer) for line, answer in answers if answer.batch in whole]
    log.write(settings, [line for line, _ in kept] + ([{"measured": measured}] if measured else []))
    return measured, [dataclasses.asdict(answer) for _, answer in kept]


def _answer(line: dict[str, Any], trees: bool = False) -> Answer:
    return Answer(**{**line, "turns": [_turn_read(turn, trees) for turn in line["turns"]]})


def _turn_read(values: dict[str, Any], trees: bool) -> Turn:
    """With its trees or without: they are for reports, and large. Logs of earlier versions have no calibration."""
    counted = values["calibration"] if "calibration" in values else tally(values["trees"] or ())
    return Turn(**{**values, "trees": values["trees"] if trees else None, "calibration": counted})
