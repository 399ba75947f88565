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
        tokenizer: a transformers tokenizer.
        strict: raise an error for a conversation that the chat template cannot format. Otherwise it is skipped and
            named on stderr.

    Raises:
        ValueError: there are conversations, and the tokenizer does not support them, or the chat template can format
            none of them, or not all and `strict` is set.
    """
    if any(isinstance(each, Conversation) for each in found):
        if not tokenizer.chat_template:
            raise ValueError("the data holds conversations and the tokenizer has no chat template; train on plain text")
        if not tokenizer.is_fast:
            raise ValueError(
                "the data holds conversations and the tokenizer does not say which characters a token stands for; "
                "train on plain text, or with a tokenizer that has a tokenizer.json"
            )
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
    """Encodes documents lazily, because a tokenizer does not accept an empty list."""
    rows = tokenizer(
        [document.text for document in documents],
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,  # no warning about texts beyond the context; windows cut them
    )["input_ids"]
    eos = tokenizer.eos_token_id
    for document, row in zip(documents, rows, strict=True):
        bare = row[:-1] if row[-1:] == [eos] else row  # an EOS here is always the tokenizer's own
        tokens = np.array([*bare, eos] if document.complete and eos is not None else bare, np.int32)
        yield Encoded(tokens, loss_mask.of_document(tokens))


def _chats(tokenizer: Any, conversations: list[Conversation]) -> Iterator[Encoded | BadRecord]:
    """Encodes conversations."""
    rendered = [chat.render(tokenizer, conversation) for conversation in conversations]
    rows = _with_offsets(tokenizer, [each.text for each in rendered if not isinstance(each, BadRecord)])
    for conversation, each in zip(conversations, rendered, strict=True):
        if isinstance(each, BadRecord):
            yield each
            continue
        tokens, offsets = next(rows)
        counted = loss_mask.of_conversation(offsets, each.spans)
        if counted.any():
            yield Encoded(tokens, counted)
        else:
            yield BadRecord(conversation.name, "the chat template cannot be used: it marks no text of the assistant")


def _with_offsets(tokenizer: Any, texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each text, which includes its special tokens: tokens [T], and their (start, end) in characters [T, 2]."""
    encoded = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
    )
    for tokens, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        yield np.array(tokens, np.int32), np.array(offsets, np.int32).reshape(-1, 2)
