"""How conversations become text: arguments of the chat template, and a system prompt."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from jaxspec.checkpoint import chat_template

_FROM_TOKENIZER = {"messages", "add_generation_prompt", "raise_exception", "strftime_now"}
"""Names that the tokenizer passes to a template."""


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """Arguments of the chat template, and a system prompt. Its truth value is false without either.

    Attributes:
        arguments: passed to the template by name, such as {"enable_thinking": False}.
        system: system message before each conversation; None: none. It may be empty: some templates then leave out
            a default of their own.

    Raises ValueError if a value has the wrong type.
    """

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    system: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, Mapping):
            raise ValueError(f"chat_args must map names to values, not {self.arguments!r}")
        if not isinstance(self.system, str | None):
            raise ValueError(f"system must be text, not {self.system!r}")

    def __bool__(self) -> bool:
        return bool(self.arguments) or self.system is not None

    def check(self, template: str) -> None:
        """Raises ValueError for an argument that the template does not read."""
        if not self.arguments:
            return
        readable = _read_by(template)
        if unread := sorted(self.arguments.keys() - readable):
            names = ", ".join(sorted(readable)) or "none"
            raise ValueError(f"the chat template reads no argument {unread[0]!r}; names that it reads: {names}")

    def messages(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        """The messages, after the system prompt. Raises ValueError if they have one of their own, too."""
        copies = [dict(message) for message in messages]
        if self.system is None:
            return copies
        if any(message.get("role") == "system" for message in copies):
            raise ValueError("the conversation has a system message, and a system prompt is given too; leave one out")
        return [{"role": "system", "content": self.system}, *copies]

    def render(
        self, tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True, **options: bool
    ) -> str:
        """The text of a conversation by the tokenizer's chat template; `options` are those of `apply_chat_template`.

        Raises ValueError if the template ignores the system prompt, or the conversation has one, too. The template
        itself may raise any error.
        """
        settings = {"add_generation_prompt": add_generation_prompt, **options}
        write = lambda form: tokenizer.apply_chat_template(form.messages(messages), **settings, **self.arguments)
        text = write(self)
        if self.system is not None and write(dataclasses.replace(self, system=f"{self.system} x")) == text:
            raise ValueError("it ignores system messages; leave out the system prompt")
        return text


def spelled(arguments: Mapping[str, Any]) -> str:
    """Arguments as on the command line, in order of their names; `none` without any."""
    return " ".join(f"{name}={json.dumps(arguments[name], default=str)}" for name in sorted(arguments)) or "none"


@functools.cache
def _read_by(template: str) -> frozenset[str]:
    """Names of the arguments that a template reads. Raises ValueError if it is not a Jinja template."""
    try:
        return chat_template.names_read(template) - _FROM_TOKENIZER
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from error
