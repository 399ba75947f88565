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
        spans: from which character and up to which one each turn of the assistant goes, end-of-turn token included.
    """

    text: str
    spans: tuple[Span, ...]


def render(tokenizer: Any, conversation: Conversation) -> Rendered | BadRecord:
    """Writes a conversation with the chat template of a transformers tokenizer, which must have one.

    The template may say where the assistant speaks, with `{% generation %}`. If it does not, what every turn of the
    assistant adds to the text is what it says; a template that lets later turns change earlier text will not do then.
    A last turn that was broken off ends where its words do.
    """
    messages = [dataclasses.asdict(message) for message in conversation.messages]
    find = _marked if _MARKS.search(tokenizer.get_chat_template()) else _added
    try:
        found = find(tokenizer, messages)
        return found if conversation.complete else _broken_off(found, conversation.messages[-1].content)
    except Exception as error:  # a template may raise anything
        return BadRecord(conversation.name, f"the chat template will not do: {' '.join(str(error).split())}")


def _marked(tokenizer: Any, messages: list[dict[str, str]]) -> Rendered:
    """With a template that marks the assistant's turns.

    `apply_chat_template` has a mask of tokens to return, but misses bytes of a character that ends a turn.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: Any = render_jinja_template(
        [messages],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    (text,), (spans,) = rendered
    return Rendered(text, tuple(spans))


def _added(tokenizer: Any, messages: list[dict[str, str]]) -> Rendered:
    """With any other template. Raises ValueError if later turns change what is before them."""

    def write(count: int, prompt: bool = False) -> str:
        return tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt)

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
    """Where the last turn ends: white space behind an end-of-turn token is the template's, and never generated."""
    bare = text.rstrip()
    return len(bare) if bare.endswith(tuple(tokenizer.all_special_tokens)) else len(text)
