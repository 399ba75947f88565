"""Reads files and folders as documents and conversations.

A record is a JSON object. It has a `text`; or `messages`, each with a `role` and a `content`; or `conversations` as in
ShareGPT, each with `from` and `value`; and perhaps a `system` or `system_prompt` beside them. `"complete": false` means
that its end is cut off. A `.jsonl` or `.ndjson` file has one record per line, a Parquet file one per row, a `.json`
file a list of them, one per line, or a single one. Files can be gzipped.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxspec.host.terminal import say
from jaxspec.train.data.text import PARQUET, Document, document, documents, is_held_out, standard_library, suffix_of
from jaxspec.train.options import STDLIB

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
_ROLES = {SYSTEM: SYSTEM, USER: USER, "human": USER, ASSISTANT: ASSISTANT, "gpt": ASSISTANT, "chatgpt": ASSISTANT}
_CONVERSATIONS = {"messages": ("role", "content"), "conversations": ("from", "value")}
_KEYS = (*_CONVERSATIONS, "text")
_A_KEY = f"{', '.join(_CONVERSATIONS)} or text"
_UNREAD = (  # of a turn: more that the assistant wrote, and which parts of it are learnt
    "reasoning_content", "reasoning", "thinking", "tool_calls", "function_call", "train_detail",
)  # fmt: skip
_WEIGHTS = ("weight", "loss", "loss_weight", "train")  # of a turn: whether it is learnt (OpenAI, ms-swift, Axolotl)
_IN_PROMPT = (  # of a record: in the prompt, as the chat template formats them
    "tools", "functions", "documents", "chat_template_kwargs", "image", "images", "videos", "audios",
)  # fmt: skip
_SYSTEM = ("system", "system_prompt")
_LINES = (".jsonl", ".ndjson", PARQUET)
_SUFFIXES = (".json", *_LINES)
_NOT_JSON = object()
_SHOWN = 3  # most bad records in a message

T = TypeVar("T")


class NoUsableRecordError(ValueError):
    """No record of the data can be used."""


@dataclasses.dataclass(frozen=True)
class Message:
    """One message; its role is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Alternating turns of a user and an assistant, optionally after a system message."""

    name: str  # the file's name with `:line` (from 1) or `#index` (from 0); the same on every machine
    messages: tuple[Message, ...]
    complete: bool = True  # false if the last turn was cut off


Texts = Sequence[Document | Conversation]


@dataclasses.dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used: its name, which gives its place, and the reason."""

    name: str
    reason: str


def read(path: Path, strict: bool = False) -> Texts:
    """The documents and conversations of a file or folder, ordered by file name and then as in the file.

    The path `stdlib` is Python's standard library. A file with one of the suffixes above holds records. In a folder, it
    does if one of its objects has a record's key. Otherwise it is a bad record itself; but a `.json` file with neither
    several objects nor lists of messages is plain text, like all other files. Raises as `usable`.
    """
    if str(path) == STDLIB:
        return standard_library()
    if path.is_dir():
        return usable(itertools.chain.from_iterable(map(_in_folder, documents(path))), strict)
    file = document(path)
    if suffix_of(path.name) not in _SUFFIXES:
        return [file]
    if not (records := [_record(*entry) for entry in _entries(file)]):
        raise ValueError(f"{path} holds no records; a .jsonl file has one per line and a .json file has a list of them")
    return usable(records, strict)


def _in_folder(file: Document) -> list[Document | Conversation | BadRecord]:
    """The records of a file; the file itself if it is plain text, or one object, such as settings."""
    entries = list(_entries(file))
    if any(_has_key(value) for _, value in entries):
        return [_record(*entry) for entry in entries]
    # Of the values that are lists, and of the lists in those that are objects.
    inside = (value.values() if isinstance(value, dict) else (value,) for _, value in entries)
    listed = [each for values in inside for value in values if isinstance(value, list) for each in value]
    if any(map(_has_key, listed)):
        return [BadRecord(file.name, "its records are inside an object; a .json file is a list of them")]
    messages = any({"role", "content"} <= each.keys() for each in listed if isinstance(each, dict))
    several = sum(isinstance(value, dict) for _, value in entries) > 1
    if messages or several or (entries and suffix_of(file.name) in _LINES):
        return [BadRecord(file.name, f"no record of this file has usable {_A_KEY}")]
    return [file]


def _has_key(value: Any) -> bool:
    """Whether this JSON value has a key of a record, and a list or text there."""
    return isinstance(value, dict) and any(isinstance(value.get(key), list | str) for key in _KEYS)


def _entries(file: Document) -> Iterator[tuple[str, Any]]:
    """Name and JSON value of each possible record: the list or object of a .json file, or the lines of a file."""
    suffix = suffix_of(file.name)
    content = file.text.removeprefix("\ufeff")  # a byte order mark, which some editors write
    values = _json(content) if suffix == ".json" else _NOT_JSON
    if isinstance(values, list):
        yield from ((f"{file.name}#{index}", value) for index, value in enumerate(values))
    elif isinstance(values, dict):
        yield file.name, values
    elif suffix in _SUFFIXES and values is _NOT_JSON:
        numbered = enumerate(content.split("\n"), 1)
        lines = [(f"{file.name}:{number}", _json(line)) for number, line in numbered if line.strip()]
        if suffix in _LINES or any(isinstance(value, dict) for _, value in lines):
            yield from lines


def _json(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # RecursionError for deeply nested brackets
        return _NOT_JSON


def _record(name: str, value: Any) -> Document | Conversation | BadRecord:
    """The record in a JSON value, or the reason why it is not one."""
    try:
        if value is _NOT_JSON:
            raise ValueError("it is not JSON")
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        value = {key: each for key, each in value.items() if each is not None}  # columns of others in a merged data set
        if not isinstance(complete := value.get("complete", True), bool):
            raise ValueError("its value of complete is neither true nor false")
        for key, (role, content) in _CONVERSATIONS.items():
            if key in value:
                if unread := [name for name in _IN_PROMPT if value.get(name) not in (None, [], {}, "", "[]")]:
                    raise ValueError(f"it has {unread[0]}, which jaxspec does not read")
                messages = (*_system_prompt(value), *_messages(key, value[key], role, content))
                if sum(message.role == SYSTEM for message in messages) > 1:
                    raise ValueError("it has more than one system prompt")
                if not complete and messages[-1].role != ASSISTANT:
                    raise ValueError("it is not complete, and its last turn is not the assistant's")
                return Conversation(name, messages, complete)
        if "text" not in value:
            raise ValueError(f"it has no {_A_KEY}")
        return Document(name, _string("its text", value["text"]), complete)
    except ValueError as error:
        return BadRecord(name, str(error))


def _system_prompt(record: dict[str, Any]) -> list[Message]:
    """A message with each system prompt that is beside a record's messages."""
    prompts = [record[key] for key in _SYSTEM if record.get(key) not in (None, "")]
    return [Message(SYSTEM, _string("its system prompt", prompt)) for prompt in prompts]


def _messages(key: str, turns: Any, role: str, content: str) -> tuple[Message, ...]:
    if not isinstance(turns, list):
        raise ValueError(f"its {key} are not a list")
    if not turns:
        raise ValueError(f"its {key} are empty")
    messages = tuple(_message(number, turn, role, content) for number, turn in enumerate(turns, 1))
    first = 1 if messages[0].role == SYSTEM else 0
    due = itertools.cycle((USER, ASSISTANT))
    for number, message in enumerate(messages[first:], first + 1):
        if message.role != (other := next(due)):
            raise ValueError(f"turn {number} is the {message.role}'s, but should be the {other}'s")
    if len(messages) < first + 2:
        raise ValueError("the assistant has no turn")
    return messages


def _message(number: int, turn: Any, role: str, content: str) -> Message:
    if not isinstance(turn, dict) or not {role, content} <= turn.keys():
        raise ValueError(f"turn {number} is not an object with {role} and {content}")
    if not isinstance(turn[role], str) or turn[role] not in _ROLES:
        raise ValueError(f"turn {number} has the role {turn[role]!r}, which must be one of {', '.join(_ROLES)}")
    if unread := [key for key in _UNREAD if turn.get(key)]:
        raise ValueError(f"turn {number} has {unread[0]}, which is not read; put all of its text into its {content}")
    learnt = _ROLES[turn[role]] == ASSISTANT
    if weights := [f"{key} {turn[key]}" for key in _WEIGHTS if turn.get(key, learnt) not in (None, learnt)]:
        raise ValueError(f"turn {number} has {weights[0]}; all turns of the assistant are learnt alike, and no others")
    return Message(_ROLES[turn[role]], _string(f"the {content} of turn {number}", _only_text(turn[content])))


def _only_text(value: Any) -> Any:
    """The text of a content that is a list of one part of type `text`; every other content as it is."""
    match value:
        case [{"type": "text", "text": text, **others}] if all(other is None for other in others.values()):
            return text
    return value


def _string(what: str, value: Any) -> str:
    """The value, if it is text that can be encoded."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half a surrogate pair, which is not a character") from None
    return value


def usable(results: Iterable[T | BadRecord], strict: bool) -> list[T]:
    """The usable results. The others are named in one line on stderr; with `strict`, the first raises ValueError.

    Raises NoUsableRecordError, a ValueError, if none is usable.
    """
    good, bad = list[T](), list[BadRecord]()
    for result in results:
        if not isinstance(result, BadRecord):
            good.append(result)
        elif strict:
            raise ValueError(f"{result.name}: {result.reason}; correct this record or remove it")
        else:
            bad.append(result)
    if not bad:
        return good
    named = "; ".join(f"{each.name}: {each.reason}" for each in bad[:_SHOWN])
    if len(bad) > _SHOWN:
        named += f"; and {len(bad) - _SHOWN} more"
    if not good:
        raise NoUsableRecordError(f"none of {len(bad)} records can be used: {named}")
    say(f"skipped {len(bad)} of {len(good) + len(bad)} records: {named}")
    return good


def split(texts: Texts) -> tuple[Texts, Texts]:
    """(training text, held-out text). Nothing is held out where the names would hold out everything."""
    kept = [text for text in texts if not is_held_out(text.name)]
    return (kept, [text for text in texts if is_held_out(text.name)]) if kept else (texts, [])
