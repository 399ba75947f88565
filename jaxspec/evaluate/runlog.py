"""`OUT.jsonl`: one line per question and method. A killed run resumes from it."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxspec.decoding.round_records import RoundCounts, from_rows
from jaxspec.engine.generation import Round
from jaxspec.host import buckets
from jaxspec.host.atomic import check_folder
from jaxspec.host.json_lines import LineLog
from jaxspec.host.processes import broadcast_from_first, is_first


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of one method. `pieces` and `words` are empty without a tokenizer."""

    prompt: list[int]
    tokens: list[int]
    text: str
    rounds: list[list[int]]  # [rounds][6] counts, see `round_records.to_rows`
    trees: list[dict[str, list]] | None  # of each round, see `tree_to_json`; None if a log was read without them
    prefill_seconds: list[float]  # of the whole batch in each repeat
    decode_seconds: list[float]  # likewise
    learnt: list[list] = dataclasses.field(default_factory=list)  # the controller's state at the end of each repeat
    calibration: list[list[float]] = dataclasses.field(default_factory=list)  # `reliability.tally` of the trees
    asked: str = ""  # the user's text
    pieces: list[str] = dataclasses.field(default_factory=list)  # texts of the answer's tokens
    words: dict[str, str] = dataclasses.field(default_factory=dict)  # texts of the trees' tokens, by id

    @property
    def history(self) -> RoundCounts:
        return from_rows(self.rounds)


@dataclasses.dataclass(frozen=True)
class Answer:
    """One method's answer to one question: a line of the log, which has all answers of a batch, or none."""

    question: int  # its number in the file, from 0
    question_id: int | str | None
    category: str | None
    method: str
    batch: int  # the number of its batch
    turns: list[Turn]
    quality: dict[str, float] = dataclasses.field(default_factory=dict)  # see `quality.score`


def answers_by_method(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers of each method, in their order."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.method, []).append(answer)
    return found


class RunLog:
    """Answers and final measurements of one run, in every process and, with a `path`, in a log file of the first.

    `sizes`: answers in each batch. Raises ValueError if the file is not the log of a run with these settings.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], sizes: Sequence[int]):
        self.measured, self.answers = None, list[Answer]()
        self.log = None if path is None else _log(path)
        if self.log is not None:
            self.measured, answers = broadcast_from_first(partial(_resume, self.log, settings, sizes))
            self.answers = list(map(_answer, answers))

    def add(self, answers: Sequence[Answer]) -> None:
        self.answers += answers
        if self.log is not None and is_first():
            self.log.append(map(dataclasses.asdict, answers))

    def finish(self, measured: dict[str, Any]) -> None:
        """Adds the final measurements, after the last batch."""
        self.measured = json.loads(json.dumps(measured))  # as it will be read back
        if self.log is not None and is_first():
            self.log.append([{"measured": measured}])
            buckets.flush()


def read_finished(path: Path) -> tuple[dict[str, Any], list[Answer], dict[str, Any]]:
    """Settings, answers with trees, and measurements of a run, from its log. Raises ValueError unless it finished."""
    lines = _log(path).lines()
    if (measured := _measured(lines)) is None:
        raise ValueError(f"{path} is not the log of a finished `jaxspec bench`; run the same command again")
    try:
        return lines[0]["settings"], [_answer(line) for line in lines if "question" in line], measured
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(not_whole(path)) from error


def not_whole(path: Path) -> str:
    """The error text for a log that lacks something, or that another version wrote."""
    return f"{path} is not complete, was changed, or is another version's; delete it and run `jaxspec bench` again"


def check_out(out: Path) -> None:
    """Raises ValueError unless results can be written to this file, and a log beside it."""
    check_folder(out)
    if out.suffix == ".jsonl":
        wanted = out.with_suffix(".json")
        raise ValueError(f"--json names a file of JSON, such as {wanted}: the log beside it ends in .jsonl")


def log_of(out: Path) -> Path:
    """The log that belongs to a result file."""
    return out.with_name(f"{out.name}.jsonl")


def tree_to_json(round_: Round) -> dict[str, list]:
    """A round's live nodes, the root first, which of them were accepted, and the committed tokens."""
    return {
        "token": round_.token.tolist(),
        "parent": round_.parent.tolist(),
        "log_confidence": [round(x, 4) for x in round_.log_confidence.tolist()],
        "accepted": round_.accepted.astype(int).tolist(),
        "committed": round_.committed,
    }


def _log(path: Path) -> LineLog:
    return LineLog(path, "the log of a bench run", "another file")


def _measured(lines: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    return next((line["measured"] for line in lines if "measured" in line), None)


def _resume(log: LineLog, settings: dict[str, Any], sizes: Sequence[int]) -> tuple[Any, list[dict[str, Any]]]:
    """The measurements, and the answers of complete batches, without trees. Removes other answers from the file."""
    lines = log.read(settings)
    try:
        counts = Counter(line["batch"] for line in lines if "question" in line)
        kept = [line for line in lines if "question" in line and counts[line["batch"]] == sizes[line["batch"]]]
        for line in kept:
            _answer(line)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(not_whole(log.path)) from error
    measured = _measured(lines)
    log.write(settings, [*kept, {"measured": measured}] if measured else kept)
    # Trees are large, and only reports need them.
    return measured, [{**line, "turns": [{**turn, "trees": None} for turn in line["turns"]]} for line in kept]


def _answer(line: dict[str, Any]) -> Answer:
    return Answer(**{**line, "turns": [Turn(**turn) for turn in line["turns"]]})


def with_token_texts(tokenizer: Any, turn: Turn) -> Turn:
    """The turn with its `pieces` and `words`; unchanged without a tokenizer."""
    if tokenizer is None:
        return turn
    drafted = {token for tree in turn.trees or () for token in tree["token"]}
    return dataclasses.replace(
        turn,
        pieces=pieces_of(tokenizer, turn.prompt, turn.tokens),
        words={str(token): word_of(tokenizer, token) for token in sorted(drafted)},
    )


def pieces_of(tokenizer: Any, prompt: list[int], tokens: list[int]) -> list[str]:
    """The text of each token after a prompt. If several tokens make up a character, the last has it."""
    pieces, before, partial_character = [], prompt, []
    for token in tokens:
        partial_character.append(token)
        text = tokenizer.decode_after(before, partial_character)
        if text.endswith("\ufffd") and len(pieces) + 1 < len(tokens):
            pieces.append("")
        else:
            pieces.append(text)
            before, partial_character = partial_character, []
    return pieces


def word_of(tokenizer: Any, token: int) -> str:
    """A token's text inside a sentence: some tokenizers drop the space that begins a text."""
    alone = tokenizer.decode([token])
    return tokenizer.decode([token, token]).removeprefix(alone) or alone
