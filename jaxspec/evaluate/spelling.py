"""Stores the texts of tokens in the log, so that it can be shown without the tokenizer."""

import dataclasses
from typing import Any

from jaxspec.evaluate.runlog import Turn


def spell(tokenizer: Any, turn: Turn) -> Turn:
    """The turn with its `pieces` and `words`; unchanged without a tokenizer."""
    if tokenizer is None:
        return turn
    drafted = {token for tree in turn.trees or () for token in tree["token"]}
    return dataclasses.replace(
        turn,
        pieces=pieces_of(tokenizer, turn.prompt, turn.tokens),
        words={str(token): word_of(tokenizer, token) for token in sorted(drafted)},
    )


def pieces_of(tokenizer: Any, prompt: list[int], tokens: list[int]) -> list[str]:
    """The text of each token after a prompt. If several tokens make up one character, the last has it and the others
    are empty."""
    # One token is context enough, unless it ends a character.
    context = prompt if "\ufffd" in tokenizer.decode(prompt[-1:]) else prompt[-1:]
    pieces, before, read = [], 0, len(context)  # what stands in [before:read] gives the next token its context
    tokens = [*context, *tokens]
    for end in range(read + 1, len(tokens) + 1):
        shown, text = (tokenizer.decode(tokens[before:until], skip_special_tokens=True) for until in (read, end))
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
