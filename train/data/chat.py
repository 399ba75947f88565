"""Formats conversations by the tokenizer's chat template, so that each answer follows its own generation prompt."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.engine.chat_format import ChatFormat
from jaxspec.train.data.records import ASSISTANT, BadRecord, Conversation

_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_PROBE = "jaxspec"  # an answer that no template changes
_TAG = re.compile(r"<[^<>]+>")
_TAGS = re.compile(rf"(?:{_TAG.pattern}\s*)+\Z")  # at the end of a text

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A conversation as text, or the part of one that a model reads at once."""

    text: str
    spans: tuple[Span, ...]  # in characters: answers that the model generated, including their end-of-turn tokens


def render(
    tokenizer: Any, conversation: Conversation, chat_format: ChatFormat = ChatFormat()
) -> list[Rendered] | BadRecord:
    """Formats a conversation with the chat template of a tokenizer, which must have one.

    Each answer stands in a span, verbatim after the generation prompt of its turn, even if the template changes it in
    earlier turns (Qwen3 and DeepSeek-R1 cut the reasoning) or strips it. While each prompt begins with the text so far
    there is one text with several spans. Otherwise a new text begins, in which earlier answers have no span.

    If the last turn was cut off, its span ends with its text.
    """
    messages, texts = [dataclasses.asdict(message) for message in conversation.messages], list[Rendered]()
    try:
        chat_format.messages(messages)
    except ValueError as error:
        return BadRecord(conversation.name, str(error))
    try:
        for index, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            prompt, answer, end = _turn(tokenizer, messages[:index], message["content"], chat_format)
            last = index == len(messages) - 1
            answer = answer + end if conversation.complete or not last else answer.rstrip()
            before = texts.pop().spans if texts and prompt.startswith(texts[-1].text) else ()
            texts.append(Rendered(prompt + answer, (*before, (len(prompt), len(prompt + answer)))))
        whole = _written(tokenizer, messages, chat_format)
        if conversation.complete and whole.startswith(texts[-1].text):
            texts[-1] = Rendered(whole, texts[-1].spans)
        return texts
    except Exception as error:  # a template may raise anything
        return BadRecord(conversation.name, f"the chat template cannot be used: {' '.join(str(error).split())}")


def _turn(
    tokenizer: Any, before: Sequence[Mapping[str, str]], answer: str, chat_format: ChatFormat
) -> tuple[str, str, str]:
    """(generation prompt, answer after it, end of the turn). Raises ValueError if the template writes no answer.

    A known answer in its place shows what the template writes around it, without a generation prompt also what precedes
    the answer. A template may also mark generated text with `{% generation %}`.
    """
    known = [*before, {"role": ASSISTANT, "content": _PROBE}]
    prompt, start, stop = chat_format.render(tokenizer, before), None, None
    if marked := _MARKS.search(tokenizer.chat_template) is not None:
        text, spans = tokenizer.render_marked(chat_format.messages(known), **chat_format.arguments)
        start, stop = spans[-1] if spans else (0, 0)
    else:
        text = _written(tokenizer, known, chat_format)
    if (at := text.rfind(_PROBE, start, stop)) < 0:
        raise ValueError(f"it {'marks' if marked else 'writes'} no text of the assistant")
    lead, end = text[len(prompt) : at] if text.startswith(prompt) else "", text[at + len(_PROBE) : stop]
    opening = prompt.removeprefix(_written(tokenizer, before, chat_format))
    if opening:
        lead = "" if lead.strip() else lead
    elif not text.startswith(prompt) and not marked:
        # Newer templates of Mistral's write the system message into the last turn only, and no generation prompt.
        lead = text[len(text[:at].rstrip()) : at]
    elif marked:
        prompt, lead = text[:start], text[start:at]
    # A generated answer may already begin with the lead, such as a space. White space after an end-of-turn token is the
    # template's, and is never generated.
    return prompt, lead + _without_tags(opening, answer).removeprefix(lead), end.rstrip() or end


def _written(tokenizer: Any, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat) -> str:
    """The text of a conversation. The template may leave the system prompt out, as long as prompts have it."""
    return tokenizer.apply_chat_template(chat_format.messages(messages), **chat_format.arguments)


def _without_tags(opening: str, answer: str) -> str:
    """The answer without tags such as <think> at its beginning with which the generation prompt ends already."""
    match = _TAGS.search(opening)
    end = match[0] if match else ""
    tags = _TAG.findall(end)
    for first in range(len(tags)):
        if begin := re.match(r"\s*" + r"\s*".join(map(re.escape, tags[first:])), answer):
            return answer[begin.end() :].removeprefix(end[len(end.rstrip()) :])
    return answer
