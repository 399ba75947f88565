"""Formats conversations by the tokenizer's chat template, and finds the assistant's parts in the text."""

import dataclasses
import re
from typing import Any

from jaxspec.train.data.records import ASSISTANT, BadRecord, Conversation

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        spans: (start, end) in characters of each turn of the assistant, including its end-of-turn token.
    """

    text: str
    spans: tuple[Span, ...]


def render(tokenizer: Any, conversation: Conversation) -> Rendered | BadRecord:
    """Formats a conversation with the chat template of a tokenizer, which must have one.

    A template may mark the assistant's text with `{% generation %}`. Otherwise the assistant's text is the part that
    each of its turns adds to the output. This requires that later turns do not change earlier output. If the last turn
    was cut off, its span ends with its text.
    """
    messages = [dataclasses.asdict(message) for message in conversation.messages]
    find = _marked if _MARKS.search(tokenizer.chat_template) else _added
    try:
        found = find(tokenizer, messages)
        return found if conversation.complete else _broken_off(found, conversation.messages[-1].content)
    except Exception as error:  # a template may raise anything
        return BadRecord(conversation.name, f"the chat template cannot be used: {' '.join(str(error).split())}")


def _marked(tokenizer: Any, messages: list[dict[str, str]]) -> Rendered:
    """Formats with a template that marks the assistant's turns."""
    return Rendered(*tokenizer.render_marked(messages))


def _added(tokenizer: Any, messages: list[dict[str, str]]) -> Rendered:
    """Formats with any other template. Raises ValueError if a later turn changes earlier output."""

    def write(count: int, prompt: bool = False) -> str:
        return tokenizer.apply_chat_template(messages[:count], add_generation_prompt=prompt)

    whole, spans = write(len(messages)), []
    for index, message in enumerate(messages):
        if message["role"] == ASSISTANT:
            before, after = write(index, prompt=True), write(index + 1)
            if not (after.startswith(before) and whole.startswith(after)):
                raise ValueError(f"its output up to turn {index + 1} depends on later turns")
            spans.append((len(before), _end(tokenizer, after)))
    return Rendered(whole, tuple(spans))


def _broken_off(found: Rendered, content: str) -> Rendered:
    """The same without what the template writes after the last turn. Raises ValueError if that turn is not found."""
    *before, (start, end) = found.spans
    if (at := found.text.rfind(content.strip(), start, end)) < 0:
        raise ValueError("it changes the last turn, which was broken off, so its end is not known")
    stop = at + len(content.strip())
    return Rendered(found.text[:stop], (*before, (start, stop)))


def _end(tokenizer: Any, text: str) -> int:
    """End of the last turn. White space after an end-of-turn token is the template's, and is never generated."""
    bare = text.rstrip()
    return len(bare) if bare.endswith(tuple(tokenizer.all_special_tokens)) else len(text)
