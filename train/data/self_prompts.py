"""User turns that a target generates, as in Magpie (arXiv:2406.08464).

After the chat template's header of a user message, a chat model continues with a user's message. A system message names
a topic, another one for each turn, because a small model repeats itself without one. The prompts of answers have none.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.requests import encode
from jaxspec.engine.stop_strings import text_of
from jaxspec.train.data.prompts import Prompt, system_of
from jaxspec.train.data.records import USER, Message

TURN = SamplingParams(max_new_tokens=96, temperature=1.0, top_p=0.9)
SEED = 2**20  # added to the seed, so that a turn and its answer draw other random numbers
TOPICS = (
    "cooking", "astronomy", "personal finance", "ancient history", "Python programming", "fractions and percentages",
    "gardening", "job interviews", "the human body", "travel in Europe", "writing a short story", "climate and weather",
    "chess and board games", "learning a language", "electricity", "dogs and cats", "the law", "poetry", "fitness",
    "computer hardware", "biology", "music theory", "marketing", "family and friends", "geography", "physics",
    "spelling and grammar", "web pages in HTML", "philosophy", "statistics", "farming", "painting", "public health",
    "home repair", "the ocean", "school homework", "algebra", "cars and bicycles", "photography", "politics",
    "writing emails", "sports", "chemistry", "clothes and fashion", "space travel", "databases and SQL", "sleep",
    "movies and books", "birds and insects", "small businesses", "mythology", "logic puzzles", "architecture",
)  # fmt: skip
_MARK = "THE-TURN-OF-THE-USER"


def headers(model: Checkpoint, chat_format: ChatFormat, count: int) -> list[Prompt]:
    """What precedes the user's message in the chat template, for `count` turns, whose topics differ.

    Raises ValueError if there is no chat template, or it does not take the format.
    """
    encode("x", model, True, chat_format)  # its errors are sentences
    text_before = lambda topic: _around(model, chat_format, topic)[0]
    by_topic = [model.tokenizer.encode(text_before(topic), add_special_tokens=False) for topic in TOPICS]
    return [Prompt(by_topic[number % len(by_topic)]) for number in range(count)]


def prompt_after(
    header: Prompt, tokens: Sequence[int], ended: bool, model: Checkpoint, chat_format: ChatFormat
) -> Prompt | None:
    """The prompt for an answer to a user turn, the `tokens` after the header without EOS; `ended`: whether EOS came.

    None if the turn is empty, leaves no room, or has no end: EOS or, in some templates, a marker in the text.
    """
    text, end = text_of(model.tokenizer, list(tokens), header.tokens), _around(model, chat_format, TOPICS[0])[1]
    turn, marker, _ = text.partition(end) if end else (text, "", "")
    if not (turn := turn.strip()) or not (ended or marker):
        return None
    (encoded,) = encode([turn], model, True, chat_format)
    messages = (*system_of(chat_format), Message(USER, turn))
    return Prompt(encoded, messages) if len(encoded) < model.config.model.usable_length else None


def _around(model: Checkpoint, chat_format: ChatFormat, topic: str) -> tuple[str, str]:
    """The text of the chat template before the user's message, and the word that ends the message."""
    system = f"{chat_format.system or 'You are a helpful assistant.'} The user asks about {topic}."
    render = lambda each: each.render(model.tokenizer, [{"role": USER, "content": _MARK}])
    text = ""
    with contextlib.suppress(Exception):  # a template that takes no system message may raise anything
        text = render(dataclasses.replace(chat_format, system=system))
    before, _, after = (text or render(chat_format)).partition(_MARK)
    return before.rstrip(" "), next(iter(after.split()), "")
