"""Options for the chat template. This module does not import JAX, so `--help` is fast."""

import dataclasses
import json
from typing import Annotated, Any

from tyro import conf

from jaxspec.engine.chat_format import ChatFormat

_PYTHONS = {"True": "true", "False": "false", "None": "null"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How the tokenizer's chat template formats conversations."""

    chat_arg: Annotated[conf.UseAppendAction[tuple[str, ...]], conf.arg(metavar="NAME=VALUE")] = ()
    """Argument of the chat template, such as enable_thinking=false. The value is JSON, otherwise text. Repeat the
    option for further arguments."""
    system: str | None = None
    """System prompt: a system message before each conversation. Conversations that have one of their own are
    refused."""

    def __post_init__(self) -> None:
        parse(self.chat_arg)

    @property
    def format(self) -> ChatFormat:
        """The options' meaning."""
        return ChatFormat(parse(self.chat_arg), self.system)


def parse(typed: tuple[str, ...]) -> dict[str, Any]:
    """Values of NAME=VALUE by name. Raises ValueError for other text, a name given twice, or a Python constant."""
    found = dict[str, Any]()
    for each in typed:
        name, equals, text = each.partition("=")
        if not (name and equals):
            raise ValueError(f"--chat-arg must be NAME=VALUE, such as enable_thinking=false, not {each!r}")
        if name in found:
            raise ValueError(f"--chat-arg {name} is given twice")
        if text in _PYTHONS:
            raise ValueError(f"--chat-arg {each}: values are JSON, so write {name}={_PYTHONS[text]}")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found
