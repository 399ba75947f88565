"""`OUT.jsonl`: one line per question and method. A killed run resumes from it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxspec.engine.generation import Round
from jaxspec.host.atomic import check_folder
from jaxspec.host.json_lines import LineLog
from jaxspec.host.processes import broadcast_from_first, is_first


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of one method.

    Attributes:
        prompt: token ids of the prompt.
        tokens: token ids of the answer.
        rounds: [rounds][6] counts, see `round_records.to_rows`.
        trees: the tree of each round, from `tree_to_json`; None if a log was read without them.
        prefill_seconds, decode_seconds: seconds of this answer's whole batch, one number per repeat.
        learnt: the arrays of the controller's state at the end, for each repeat.
        calibration: `reliability.tally` of the trees.
        asked: the user's text in this turn.
        pieces: the answer's text, one string per token; empty without a tokenizer.
        words: the text of every token in the trees, by its id; empty like `pieces`.
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
    """One method's answer to one question: a line of the log.

    Attributes:
        question: its number in the file, from 0.
        batch: the number of its batch. The log has all answers of a batch, or none.
        quality: scores of the answer, see `quality.score`; empty if its suite has none.
    """

    question: int
    question_id: int | str | None
    category: str | None
    method: str
    batch: int
    turns: list[Turn]
    quality: dict[str, float] = dataclasses.field(default_factory=dict)


class RunLog:
    """Answers and final measurements of one run, in memory and in a log file.

    Every process holds all of them. Only the first reads and writes the file.

    Args:
        path: the log; None: no file.
        settings: the settings that the numbers depend on. A log with other settings is rejected.
        is_whole: whether a list of answers is a complete batch.

    Raises:
        ValueError: the file belongs to another run, or is not a log.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], is_whole: Callable[[list[Answer]], bool]):
        self.measured, self.answers = None, list[Answer]()
        self.log = None if path is None else LineLog(path, "the log of a bench run", "another file")
        if self.log is None:
            return
        self.measured, answers = broadcast_from_first(partial(_resume, self.log, settings, is_whole))
        self.answers = [_answer(line) for line in answers]

    def add(self, answers: Sequence[Answer]) -> None:
        """Adds one complete batch."""
        self.answers += answers
        if self.log is not None and is_first():
            self.log.append(map(dataclasses.asdict, answers))

    def finish(self, measured: dict[str, Any]) -> None:
        """Adds the final measurements, after the last batch."""
        self.measured = json.loads(json.dumps(measured))  # as it will be read back
        if self.log is not None and is_first():
            self.log.append([{"measured": measured}])


def read_finished(path: Path) -> tuple[dict[str, Any], list[Answer], dict[str, Any]]:
    """The settings, the answers with their trees, and the measurements of a finished run, from its log.

    Raises:
        ValueError: the file is not a log, or its run was not finished.
    """
    lines = LineLog(path, "the log of a bench run", "another file").lines()
    measured = next((line["measured"] for line in lines if "measured" in line), None)
    if measured is None:
        raise ValueError(f"{path} is the log of a run that was not finished; run the same `jaxspec bench` again")
    answers = [_answer(line, trees=True) for line in lines if "question" in line]
    return lines[0]["settings"], answers, measured


def check_out(out: Path) -> None:
    """Raises ValueError unless results can be written to this file, and a log beside it."""
    check_folder(out)
    if out.suffix == ".jsonl":
        wanted = out.with_suffix(".json")
        raise ValueError(f"--json names a file of JSON, such as {wanted}: the log beside it ends in .jsonl")


def log_of(out: Path) -> Path:
    """The log that belongs to a result file."""
    return Path(f"{out}.jsonl")


def tree_to_json(round_: Round) -> dict[str, list]:
    """A round's tree and verdict: its live nodes, the root first; which were accepted; the committed tokens."""
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
    """The measurements, and the answers of complete batches, without trees. Removes other answers from the file."""
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
    """An answer from the log. Trees are large and only reports need them."""
    return Answer(**{**line, "turns": [Turn(**(turn if trees else {**turn, "trees": None})) for turn in line["turns"]]})


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
    """The text of each token after a prompt. If several tokens make up one character, the last has it and the others
    are empty."""
    # One token is context enough, unless it ends a character.
    context = prompt if "\ufffd" in tokenizer.decode(prompt[-1:]) else prompt[-1:]
    pieces, before, read = [], 0, len(context)  # tokens[before:read] are the context of the next token
    tokens = [*context, *tokens]
    for end in range(read + 1, len(tokens) + 1):
        shown, text = (tokenizer.decode(tokens[before:until], skip_special_tokens=True) for until in (read, end))
        if text.endswith("\ufffd") and end < len(tokens):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        before, read = read, end
    return pieces


def word_of(tokenizer: Any, token: int) -> str:
    """A token's text inside a sentence: some tokenizers drop the space that begins a text."""
    alone = tokenizer.decode([token])
    return tokenizer.decode([token, token]).removeprefix(alone) or alone
