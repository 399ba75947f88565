"""Stores the texts of tokens in the log, so that it can be shown without the tokenizer."""

import dataclasses
from typing import Any

from jaxspec.engine.stop_strings import text_of
from jaxspec.evaluate.runlog import Turn


def spell(tokenizer: Any, turn: Turn) -> Turn:
    """The turn with its `pieces` and `words`; unchanged without a tokenizer."""
    if tokenizer is None:
        return turn
    drafted = {token for tree in turn.trees or () for token in tree["token"]}
    return dataclasses.replace(
        turn,
        pieces=pieces_of(tokenizer, turn.tokens),
        words={str(token): word_of(tokenizer, token) for token in sorted(drafted)},
    )


def pieces_of(tokenizer: Any, tokens: list[int]) -> list[str]:
    """The text of each token. If several tokens make up one character, the last has it and the others are empty."""
    pieces, before, read = [], 0, 0  # tokens[before:read] have their pieces; they give the next token its context
    for end in range(1, len(tokens) + 1):
        shown, text = (text_of(tokenizer, tokens[before:until]) for until in (read, end))
        if text.endswith("\ufffd") and end < len(tokens):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        before, read = read, end
    return pieces


def word_of(tokenizer: Any, token: int) -> str:
    """A token's text inside a sentence: some tokenizers drop the space that begins a text."""
    alone = tokenizer.decode([token])
    return tokenizer.decode([token, token]).removeprefix(alone) or alone
