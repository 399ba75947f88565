"""Encodes documents and conversations with a checkpoint's tokenizer."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxspec.train.data import chat, loss_mask
from jaxspec.train.data.records import BadRecord, Conversation, usable
from jaxspec.train.data.sources import Texts
from jaxspec.train.data.text import Document, Encoded

_AT_ONCE = 64  # documents encoded at once; a tokenizer's result takes fifty times the memory of its ids


def encode(tokenizer: Any, found: Texts, enough: int | None = None, strict: bool = False) -> list[Encoded]:
    """Encodes documents and conversations, in order, until there are `enough` tokens (None: all).

    A document starts as the tokenizer starts a text, usually with BOS. It ends with EOS if it is complete. All of its
    tokens count. A special token's name in it is ordinary text. A conversation is formatted by the chat template, and
    the assistant's turns count, with their end-of-turn tokens.

    Args:
        strict: raise an error for a conversation that the chat template cannot format. Otherwise it is skipped and
            named on stderr.

    Raises:
        ValueError: there are conversations, and the tokenizer does not support them, or the chat template can format
            none of them, or not all and `strict` is set.
    """
    if any(isinstance(each, Conversation) for each in found) and not tokenizer.chat_template:
        raise ValueError("the data holds conversations and the tokenizer has no chat template; train on plain text")
    return usable(_groups(tokenizer, found, enough), strict)


def _groups(tokenizer: Any, found: Texts, enough: int | None) -> Iterator[Encoded | BadRecord]:
    """Encodes in order, `_AT_ONCE` at a time, until there are enough tokens."""
    total = 0
    for start in range(0, len(found), _AT_ONCE):
        if enough is not None and total >= enough:
            return
        group = found[start : start + _AT_ONCE]
        texts = _texts(tokenizer, [each for each in group if isinstance(each, Document)])
        chats = _chats(tokenizer, [each for each in group if isinstance(each, Conversation)])
        for each in group:
            encoded = next(texts if isinstance(each, Document) else chats)
            total += len(encoded.tokens) if isinstance(encoded, Encoded) else 0
            yield encoded


def _texts(tokenizer: Any, documents: list[Document]) -> Iterator[Encoded]:
    """Encodes documents."""
    rows = tokenizer.encode_as_text([document.text for document in documents])
    eos = tokenizer.eos_token_id
    for document, row in zip(documents, rows, strict=True):
        bare = row[:-1] if row[-1:] == [eos] else row  # an EOS here is always the tokenizer's own
        tokens = np.array([*bare, eos] if document.complete and eos is not None else bare, np.int32)
        yield Encoded(tokens, loss_mask.of_document(tokens))


def _chats(tokenizer: Any, conversations: list[Conversation]) -> Iterator[Encoded | BadRecord]:
    """Encodes conversations."""
    rendered = [chat.render(tokenizer, conversation) for conversation in conversations]
    texts = [each.text for each in rendered if not isinstance(each, BadRecord)]
    rows = iter(tokenizer.encode_with_offsets(texts))
    for conversation, each in zip(conversations, rendered, strict=True):
        if isinstance(each, BadRecord):
            yield each
            continue
        tokens, offsets = next(rows)
        counted = loss_mask.of_conversation(np.array(offsets, np.int32).reshape(-1, 2), each.spans)
        if counted.any():
            yield Encoded(np.array(tokens, np.int32), counted)
        else:
            yield BadRecord(conversation.name, "the chat template cannot be used: it marks no text of the assistant")
