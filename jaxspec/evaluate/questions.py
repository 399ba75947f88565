"""Prompt files: how they are found and read, their published formats, and the prompts of their questions.

A file is JSON lines, a JSON list, either of them gzipped, or Parquet, here or on the hub.
"""

import contextlib
import dataclasses
import gzip
import itertools
import json
import re
import reprlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint import hub
from jaxspec.checkpoint.builtin import locate_prompts
from jaxspec.engine.requests import Prompt
from jaxspec.host.json_lines import parquet_rows
from jaxspec.host.terminal import say

Values = Mapping[str, Any]
FINAL = re.compile(r"####\s*(-?[.,]*[0-9][0-9.,]*)\s*$")  # the end of an answer of GSM8K, and its number


@dataclasses.dataclass(frozen=True)
class Question:
    """A question: one line of a prompt file."""

    turns: tuple[str, ...]  # the user's messages; each gets one answer
    question_id: int | str | None = None
    category: str | None = None
    worked: tuple[str, ...] = ()  # the file's own answers to the first turns
    examples: tuple[tuple[str, str], ...] = ()  # (turn, answer) of other questions, to put before the first turn
    suite: str | None = None  # the name of its published format; None for the general formats


@dataclasses.dataclass(frozen=True)
class Format:
    """A published format, recognised by its keys.

    Summaries and GSM8K use the papers' few-shot form, in which a label precedes the answer.
    """

    suite: str
    keys: tuple[str, ...]  # of every question, with strings as their values
    turn: Callable[[Values], str]  # makes the user's message
    answer: str | None = None  # the key of the worked answer
    id: str = "id"  # the key of the question's id
    more: Callable[[Values], bool] = lambda values: True  # a further condition
    category: str = "category"  # the key of the question's category
    end: str = ""  # what follows a worked answer in an example


def _alpaca_turn(values: Values) -> str:
    return "\n".join(filter(None, (values["instruction"], values.get("input"))))


def _mbpp_turn(values: Values) -> str:
    """The prompt of MBPP's paper, which shows the tests: they name the function."""
    task, tests = values.get("text") or values.get("prompt", ""), "\n".join(values["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {task} Your code should pass these tests:\n\n"
        f"{tests}\n[BEGIN]"
    )


def _is_mbpp(values: Values) -> bool:
    tests: Any = values.get("test_list")
    task = values.get("text", values.get("prompt"))  # the second in the sanitised version
    return isinstance(task, str) and isinstance(tests, list) and all(isinstance(test, str) for test in tests)


def _is_of(name: str) -> Callable[[Values], bool]:
    """Whether a question's task_id begins with a name."""
    return lambda values: values["task_id"].startswith(name)


ON_THE_LINE = ("\nAnswer:", "\nSummary:")  # after these an example's answer is on the same line, as in the harness
GSM8K, MATH = "Question: {question}\nAnswer:", "Problem:\n{problem}\n\nSolution:"
TASK = ("task_id", "prompt", "entry_point")  # the keys of HumanEval
FORMATS = (
    # HumanEval (arXiv:2107.03374). Its translations and MBPP+ have the same keys, and other ids.
    Format("humaneval", TASK, "{prompt}".format_map, id="task_id", more=_is_of("HumanEval/")),
    # GSM8K (arXiv:2110.14168)
    Format("gsm8k", ("question", "answer"), GSM8K.format_map, "answer", more=lambda v: bool(FINAL.search(v["answer"]))),
    # MBPP (arXiv:2108.07732), whole and sanitised
    Format("mbpp", ("code",), _mbpp_turn, "code", id="task_id", more=_is_mbpp, end="\n[DONE]"),
    # MBPP+ (arXiv:2305.01210) as EvalPlus distributes it: its prompt, a docstring, has the tests
    Format("mbpp", TASK, "{prompt}".format_map, id="task_id", more=_is_of("Mbpp/")),
    # MATH-500: MATH (arXiv:2103.03874) with the answers and the split of arXiv:2305.20050, in Minerva's form
    Format("math", ("problem", "solution", "answer"), MATH.format_map, "solution", id="unique_id", category="subject"),
    # XSum (arXiv:1808.08745), CNN/DM (arXiv:1704.04368)
    Format("xsum", ("document", "summary"), "Article: {document}\nSummary:".format_map, "summary"),
    Format("cnn-dm", ("article", "highlights"), "Article: {article}\nSummary:".format_map, "highlights"),
    # Alpaca's data and AlpacaEval
    Format("alpaca", ("instruction",), _alpaca_turn, more=lambda v: isinstance(v.get("input"), str | None)),
)
"""General questions have `turns`, as MT-bench (arXiv:2306.05685), Spec-Bench (arXiv:2401.07851) and SPEED-Bench
(arXiv:2604.09557), or a `prompt`."""
# In place of SPEED-Bench's turns.
UNPREPARED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def parse_question(values: Any, where: str) -> Question:
    """The question in a line's JSON value. Raises ValueError, which names its place `where`, for others."""
    general = f'{where}: a question is {{"turns": ["..."]}} or {{"prompt": "..."}}'
    if not isinstance(values, dict):
        raise ValueError(general)
    for form in FORMATS:
        if all(isinstance(values.get(key), str) for key in form.keys) and form.more(values):
            worked = (values[form.answer] + form.end,) if form.answer else ()
            name, category = _name(values, form.id, where), _category(values, form.category)
            return Question((form.turn(values),), name, category, worked, suite=form.suite)
    if not values.keys() & {"turns", "prompt"}:
        published = "; ".join(f"{form.suite}: {', '.join(form.keys)}" for form in FORMATS)
        raise ValueError(
            f"{general}, or has the keys of a published format ({published}; an answer of GSM8K ends in #### and a "
            "number)"
        )
    turns: Any = values["turns"] if "turns" in values else [values["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: turns are a list of at least one string, and a prompt is a string")
    if any(turn.startswith(UNPREPARED) for turn in turns):
        raise ValueError(
            f"{where}: SPEED-Bench as published has placeholders for the turns of other data sets; run `python "
            "prepare_data.py --dataset speed` in examples/specdec_bench of github.com/NVIDIA/Model-Optimizer, and name "
            "the test.parquet that it writes"
        )
    worked = _worked(values)
    # GSM8K is often distributed in MT-bench's format; the answers' end identifies it.
    suite = "gsm8k" if len(turns) == len(worked) == 1 and FINAL.search(worked[0]) else None
    name, category = _name(values, "question_id", where), _category(values, "category")
    return Question(tuple(turns), name, category, worked, suite=suite)


def _name(values: Values, key: str, where: str) -> int | str | None:
    """The id of a line. Raises ValueError unless it is a string or a whole number."""
    given: Any = values.get(key)
    if not isinstance(given, int | str | None) or isinstance(given, bool):
        raise ValueError(f"{where}: {key} must be a string or a whole number, not {reprlib.repr(given)}")
    return given


def _category(values: Values, key: str) -> str | None:
    given: Any = values.get(key)
    return str(given) if isinstance(given, str | int | float) else None


def _worked(values: Values) -> tuple[str, ...]:
    """The worked answers of a line; () unless all are text."""
    given: Any = values.get("reference", values.get("answer"))
    given = [given] if isinstance(given, str) else given
    filled = isinstance(given, list) and all(isinstance(answer, str) and answer.strip() for answer in given)
    return tuple(given) if filled else ()


SYSTEM = {"system", "system_prompt"}
UNREAD = SYSTEM | {"messages", "conversations", "history", "context", "tools", "functions", "images"}
UNREAD |= {"max_tokens", "max_new_tokens", "temperature", "top_p", "stop"}
"""Keys that are not read, although they change answers in the benchmarks that have them."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_HUB = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:/(.+))?")


def records(prompts: str | Path) -> Iterator[tuple[str, Any]]:
    """Yields (place in the file, JSON value) of every question. Raises ValueError for files that cannot be read."""
    path = locate(prompts)
    if path.suffix == ".parquet":
        rows = parquet_rows(path, f"the prompt file {prompts}")
        yield from ((f"{prompts}, row {number}", row) for number, row in enumerate(rows, 1))
        return
    text = _text(path, prompts)
    if text.lstrip()[:1] == "[" and ".jsonl" not in path.suffixes:
        listed = _from_json(text, f"the prompt file {prompts} is")
        yield from ((f"{prompts}, entry {number}", entry) for number, entry in enumerate(listed, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split inside JSON strings
        if line.strip():
            yield (where := f"{prompts}, line {number}"), _from_json(line, f"{where}:")


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} not JSON ({error})") from error


def locate(prompts: str | Path) -> Path:
    """The path of a local file, of one of the package by its name, or of one on the hub, downloaded by OWNER/NAME, with
    /FILE if the data set has several suitable files.
    """
    path = locate_prompts(prompts)
    named = _HUB.fullmatch(str(prompts))
    return path if path.exists() or named is None or path.parent.is_dir() else download(*named.groups())


def download(name: str, file: str | None = None) -> Path:
    """Downloads a file of a data set; by default its only suitable file, or the only one of the test split.

    Raises ValueError if there is no such data set or file, no network, or several suitable files, which it lists.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(hf_hub_download(name, file or _choose(name), repo_type="dataset"))
    except Exception as error:
        if not isinstance(error, HFValidationError | OSError) and not hub.is_of_client(error):
            raise
        raise ValueError(hub.reason(name, error, "data set")) from error


def _listed(name: str) -> list[str]:
    """The files of a data set; those in the cache if the hub cannot be reached and there are any."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().list_repo_files(name, repo_type="dataset")
    except HfHubHTTPError:
        raise
    except Exception:  # of many kinds, as in `download`
        with contextlib.suppress(OSError, ValueError):  # it is not in the cache
            folder = Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
            files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
            say(f"{name}: the hub cannot be reached, so only files in its cache are found: {', '.join(files)}")
            return files
        raise


def _choose(name: str) -> str:
    there = [file for file in _listed(name) if file.endswith(SUFFIXES)]
    found = [file for file in there if "test" in re.split(r"[^a-z]", file.lower())] or there
    if len(found) != 1:
        offers = f"name one of {', '.join(sorted(found))} as {name}/FILE" if found else "it has none"
        raise ValueError(f"{name} is a data set with {len(found)} files that may hold questions; {offers}")
    return found[0]


def _text(path: Path, prompts: str | Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt file {prompts} is not UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ValueError(f"the prompt file {prompts} cannot be read: {reason}") from error


def read_questions(path: str | Path, limit: int | None = None, shots: int = 0) -> list[Question]:
    """Reads the first questions of a file: `{"turns": [...]}` or `{"prompt": ...}` per line, or a published format.

    Worked answers are `"reference": [...]`, one per turn, or `"answer": "..."`. Keys in UNREAD give a warning.

    Args:
        path: a path, a hub id, or the name of a file of the package, such as `builtin` (held-out Python).
        limit: number of questions; None: all.
        shots: number of worked examples before every question: the first questions with an answer, beside `limit`.

    Raises:
        ValueError: the file cannot be read, has no question, a line of another format, or too few examples.
    """
    if shots < 0:
        raise ValueError(f"--shots must be 0 or above, not {shots}")
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, not {limit}")
    unread = set[str]()

    def parsed() -> Iterator[Question]:
        for where, values in records(path):
            question = parse_question(values, where)
            beside = {"prompt"} if "turns" in values or question.suite == "alpaca" else set()
            unread.update(key for key in UNREAD | beside if values.get(key))
            yield question

    questions = parsed()
    # Without examples, lines after the last question are not read, and may have another format.
    found = list(questions) if shots else list(itertools.islice(questions, limit))
    if not found:
        raise ValueError(f"the prompt file {path} holds no questions")
    if unread:
        advice = "; with --system, where a command has it, all questions get the same one" if unread & SYSTEM else ""
        say(f"warning: keys of questions of {path} that are ignored: {', '.join(sorted(unread))}{advice}")
    return _with_examples(found, shots, path)[:limit] if shots else found


def next_prompt(question: Question, answers: Sequence[str], chat: bool) -> Prompt:
    """The prompt of the turn after `answers`: messages if `chat`, otherwise turns and answers as one text."""
    turns = question.turns[: len(answers) + 1]
    if chat:
        exchanges = [*question.examples, *zip(turns, answers, strict=False)]
        pairs = [({"role": "user", "content": t}, {"role": "assistant", "content": a}) for t, a in exchanges]
        return [*itertools.chain(*pairs), {"role": "user", "content": turns[-1]}]
    space = lambda turn: " " if turn.endswith(ON_THE_LINE) else "\n"
    examples = "".join(f"{turn}{space(turn)}{answer}\n\n" for turn, answer in question.examples)
    # The model continues right after a turn; the next turn starts on a new line.
    return examples + turns[0] + "".join(f"{answer}\n{turn}" for answer, turn in zip(answers, turns[1:], strict=True))


def _with_examples(questions: Sequence[Question], shots: int, path: str | Path) -> list[Question]:
    """The questions with `shots` examples each, without the examples themselves."""
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
