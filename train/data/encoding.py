"""Encodes documents and conversations with a checkpoint's tokenizer."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxspec.engine.chat_format import ChatFormat
from jaxspec.host.terminal import say
from jaxspec.train.data import chat
from jaxspec.train.data.records import BadRecord, Conversation, Texts, usable
from jaxspec.train.data.text import Document, Encoded, Windows

_AT_ONCE = 64  # documents encoded at once; a tokenizer's result takes fifty times the memory of its ids
_NAME = 80  # characters; names of special tokens are shorter


def encode(
    tokenizer: Any,
    records: Texts,
    enough: int | None = None,
    strict: bool = False,
    chat_format: ChatFormat = ChatFormat(),
) -> list[Encoded]:
    """Encodes documents and conversations, in order, until there are `enough` tokens (None: all).

    A document starts as the tokenizer starts a text, usually with BOS, and ends with EOS if it is complete. All of its
    tokens count. A special token's name in it is ordinary text. A conversation is formatted by the chat template, and
    the assistant's turns count, with their end-of-turn tokens. If the template rewrites earlier turns, a conversation
    becomes several texts (see `chat.render`), which stderr reports.

    Raises ValueError if there are conversations, and the tokenizer does not support them, or the chat template does not
    read an argument, or can format none of them, or with `strict` not all; otherwise stderr names those left out.
    """
    if any(isinstance(each, Conversation) for each in records):
        if not tokenizer.chat_template:
            raise ValueError("the data holds conversations and the tokenizer has no chat template; train on plain text")
        chat_format.check(tokenizer.chat_template)
    texts = usable(_groups(tokenizer, records, enough, chat_format), strict)
    if split := [len(each) for each in texts if len(each) > 1]:
        say(f"{len(split)} conversations became {sum(split)} texts, because the chat template rewrites earlier turns")
    return list(itertools.chain.from_iterable(texts))


def warn_of_special_names(tokenizer: Any, records: Texts) -> None:
    """Prints a warning if texts begin or end with a special token's name, as those that a chat template wrote do."""
    names = tuple(tokenizer.special_ids)
    # Only the ends are read, which is fast, and source code may hold such a name in its middle.
    ends = [(each.text[:_NAME].lstrip(), each.text[-_NAME:].rstrip()) for each in records if isinstance(each, Document)]
    if marked := [(begin, end) for begin, end in ends if begin.startswith(names) or end.endswith(names)]:
        begin, end = marked[0]
        example = next(name for name in names if begin.startswith(name) or end.endswith(name))
        say(
            f"warning: {len(marked)} of {len(ends)} texts begin or end with the name of a special token, such as "
            f"{example}, which is read as ordinary text; give conversations as messages"
        )


def _groups(
    tokenizer: Any, records: Texts, enough: int | None, chat_format: ChatFormat
) -> Iterator[list[Encoded] | BadRecord]:
    total = 0
    for start in range(0, len(records), _AT_ONCE):
        if enough is not None and total >= enough:
            return
        group = records[start : start + _AT_ONCE]
        texts = _texts(tokenizer, [each for each in group if isinstance(each, Document)])
        chats = _chats(tokenizer, [each for each in group if isinstance(each, Conversation)], chat_format)
        for each in group:
            encoded = [next(texts)] if isinstance(each, Document) else next(chats)
            total += 0 if isinstance(encoded, BadRecord) else sum(len(text.tokens) for text in encoded)
            yield encoded


def _texts(tokenizer: Any, documents: list[Document]) -> Iterator[Encoded]:
    rows = tokenizer.encode_as_text([document.text for document in documents])
    eos = tokenizer.eos_token_id
    for document, row in zip(documents, rows, strict=True):
        bare = row[:-1] if row[-1:] == [eos] else row  # an EOS here is always the tokenizer's own
        tokens = np.array([*bare, eos] if document.complete and eos is not None else bare, np.int32)
        yield Encoded(tokens, np.ones(len(tokens), bool))


def _chats(
    tokenizer: Any, conversations: list[Conversation], chat_format: ChatFormat
) -> Iterator[list[Encoded] | BadRecord]:
    rendered = [chat.render(tokenizer, conversation, chat_format) for conversation in conversations]
    texts = [text.text for each in rendered if not isinstance(each, BadRecord) for text in each]
    rows = iter(tokenizer.encode_with_offsets(texts))
    for each in rendered:
        if isinstance(each, BadRecord):
            yield each
        else:
            encoded = zip(itertools.islice(rows, len(each)), each, strict=True)
            yield [_counted(tokens, offsets, text.spans) for (tokens, offsets), text in encoded]


def _counted(tokens: list[int], offsets: list[tuple[int, int]], spans: tuple[chat.Span, ...]) -> Encoded:
    """Tokens with their (start, end) in characters; those that overlap with a span count."""
    first, last = np.array(offsets, np.int32).reshape(-1, 2).T
    counted = np.zeros(len(tokens), bool)
    for start, end in spans:
        counted |= (first < end) & (last > start)
    return Encoded(np.array(tokens, np.int32), counted)


def token_counts(encoded: Iterable[Encoded | Windows], vocab_size: int) -> Int[np.ndarray, " V"]:
    """How often each token occurs among those that count."""
    counts = np.zeros(vocab_size, np.int64)
    for each in encoded:
        counts += np.bincount(np.asarray(each.tokens)[np.asarray(each.counted)], minlength=vocab_size)
    return counts
