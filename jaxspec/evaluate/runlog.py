"""`OUT.jsonl`: what a run has measured so far, a line a question and method, from which a killed run resumes."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxspec.trace import Round


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of one method.

    Attributes:
        prompt: token ids that it answers.
        tokens: token ids of the answer.
        rounds: [rounds, 5] counts, columns `decode.HISTORY`.
        trees: of each round, as `tree_to_json` writes them; None where the recorded pass took other rounds than the
            timed ones, as a near-tie can make it, or where this was read back from a log.
        prefill_seconds, decode_seconds: of the whole batch that this answer was in, a number a repeat.
        learnt: what the controller had learnt at the end: for each repeat, the arrays of its state.
    """

    prompt: list[int]
    tokens: list[int]
    text: str
    rounds: list[list[int]]
    trees: list[dict[str, list]] | None
    prefill_seconds: list[float]
    decode_seconds: list[float]
    learnt: list[list] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one method did with one question: a line of the log.

    Attributes:
        question: its number in the file, from 0.
        batch: number of the batch that it was decoded in; batches are whole in the log, or not there.
    """

    question: int
    question_id: int | str | None
    category: str | None
    method: str
    batch: int
    turns: list[Turn]


class RunLog:
    """Answers and final measurements of one run, on disk too where it has a path.

    Args:
        path: of the log; None keeps nothing.
        settings: everything that the numbers depend on; a log with others is refused.
        is_whole: whether these answers are all that one batch yields.

    Raises:
        ValueError: the file is another run's, or no log.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], is_whole: Callable[[list[Answer]], bool]):
        self.path, self.measured, self.answers = path, None, list[Answer]()
        lines = [] if path is None or not path.exists() else _lines(path)
        if path is None:
            return
        if lines:
            _check_same(lines[0]["settings"], json.loads(json.dumps(settings)), path)
        answers = [(line, _answer(line)) for line in lines[1:] if "question" in line]
        batches: dict[int, list[Answer]] = {}
        for _, answer in answers:
            batches.setdefault(answer.batch, []).append(answer)
        whole = {batch for batch, members in batches.items() if is_whole(members)}
        self.answers = [answer for _, answer in answers if answer.batch in whole]
        self.measured = next((line["measured"] for line in lines if "measured" in line), None)
        kept = [{"settings": settings}, *(line for line, answer in answers if answer.batch in whole)]
        kept += [{"measured": self.measured}] if self.measured else []
        write_whole(path, "".join(map(_to_line, kept)))

    def add(self, answers: Sequence[Answer]) -> None:
        """Adds one whole batch."""
        self.answers += answers
        self._append(map(dataclasses.asdict, answers))

    def finish(self, measured: dict[str, Any]) -> None:
        """Adds what was measured once, after the last batch."""
        self.measured = json.loads(json.dumps(measured))  # as it will be read back
        self._append([{"measured": measured}])

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(map(_to_line, lines)))
                file.flush()
                os.fsync(file.fileno())


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def tree_to_json(round_: Round) -> dict[str, list]:
    """A round's tree and verdict: live nodes, the root first; what was accepted; what it committed."""
    return {
        "token": round_.token.tolist(),
        "parent": round_.parent.tolist(),
        "log_confidence": [round(x, 4) for x in round_.log_confidence.tolist()],
        "accepted": round_.accepted.astype(int).tolist(),
        "committed": round_.committed,
    }


def _to_line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one without its end was torn by a kill and is left out."""
    *ended, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    try:
        lines = [json.loads(line) for line in ended]
    except ValueError as error:
        raise ValueError(
            f"{path} is not the log of a bench run ({error}); delete it or choose another --json"
        ) from error
    if lines and not (isinstance(lines[0], dict) and isinstance(lines[0].get("settings"), dict)):
        raise ValueError(f"{path} is not the log of a bench run; delete it or choose another --json")
    return lines


def _answer(line: dict[str, Any]) -> Answer:
    turns = [Turn(**{**turn, "trees": None}) for turn in line["turns"]]  # trees are for reports, and large
    return Answer(**{**line, "turns": turns})


def _check_same(found: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    for (name, ours), theirs in zip(_flat(wanted).items(), map(_flat(found).get, _flat(wanted)), strict=True):
        if theirs != ours:
            raise ValueError(
                f"{path} belongs to a run with other settings ({name} is {theirs} there and {ours} here); "
                "delete it or choose another --json"
            )


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting less; the inner keys are distinct."""
    return {
        name: inner
        for key, value in values.items()
        for name, inner in (value.items() if isinstance(value, dict) else [(key, value)])
    }
