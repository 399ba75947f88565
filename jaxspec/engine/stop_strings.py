"""Strings that end a text where they first appear, and the part of a growing text that can be shown before."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

UTF8_BYTES = 4  # of the longest character


class StopStrings:
    """Strings that end a text at their first occurrence. Its truth value is false without any string.

    A special token is not part of a text, but a stop string that is its name ends the text where it is generated.

    Raises:
        ValueError: a string is empty or not text, or there is no tokenizer.
    """

    def __init__(self, strings: Sequence[str] | None, tokenizer: Any):
        if not isinstance(strings, str | Sequence | None):
            raise ValueError(f"stop must be a string or several, not {strings!r}")
        strings = [strings] if isinstance(strings, str) else list(strings or ())
        for string in strings:
            if not isinstance(string, str) or not string:
                raise ValueError(f"a stop string must be text and not empty, not {string!r}")
            if any("\ud800" <= character <= "\udfff" for character in string):
                raise ValueError(f"the stop string {string!r} has a part that is no character, and no text has it")
        if strings and tokenizer is None:
            raise ValueError("stop strings need a tokenizer, and this checkpoint has none")
        self.strings, self.tokenizer = strings, tokenizer
        special = tokenizer.special_ids if strings else {}
        self._ids = {special[string] for string in strings if string in special}

    def __bool__(self) -> bool:
        return bool(self.strings)

    @property
    def longest(self) -> int:
        """Length of the longest stop string, in characters."""
        return max(map(len, self.strings), default=0)

    def cut(self, tokens: list[int], before: list[int]) -> tuple[int, str, bool]:
        """(number of tokens up to the end of the first stop string, text before it, whether there is one).

        Args:
            tokens: generated tokens.
            before: the prompt, or its end.
        """
        special = next((at for at, token in enumerate(tokens) if token in self._ids), None)
        ordinary = tokens[:special]
        text = text_of(self.tokenizer, ordinary, before)
        hidden = self.strings and text.endswith("\ufffd") and self._is_in(ordinary, before)
        if self._find(text) is None and not hidden:
            return (len(tokens), text, False) if special is None else (special + 1, text, True)
        least = range(1, len(ordinary))
        count = 1 + bisect_left(least, True, key=lambda count: self._is_in(ordinary[:count], before))
        text = text_of(self.tokenizer, tokens[:count], before)
        return count, text[: self._find(text)], True

    def _is_in(self, tokens: list[int], before: list[int]) -> bool:
        """Whether a stop string is in the text of these tokens, without an unfinished character at its end.

        Byte tokens in a row are decoded as one, so an unfinished character makes those before it unreadable too.
        """
        for count in range(len(tokens), max(len(tokens) - UTF8_BYTES, 0), -1):
            text = text_of(self.tokenizer, tokens[:count], before)
            if self._find(text) is not None or not text.endswith("\ufffd"):
                return self._find(text) is not None
        return False

    def _find(self, text: str) -> int | None:
        return min((at for string in self.strings if (at := text.find(string)) >= 0), default=None)


def text_of(tokenizer: Any, tokens: list[int], before: list[int]) -> str:
    """The text of tokens that follow the tokens `before`, without special tokens; empty without a tokenizer."""
    return "" if tokenizer is None else tokenizer.decode_after(before, tokens)


class ShownText:
    """The part of a growing text that can be shown: no partial character, and no possible start of a stop string."""

    def __init__(self, tokenizer: Any):
        if tokenizer is None:
            raise ValueError("streaming text needs a tokenizer, and this checkpoint has none")
        self.shown = 0

    def more(self, text: str, *, final: bool, hold: int) -> Iterator[str]:
        """Yields the new part of `text`. Unless `final`, it keeps back `hold` characters and a partial character."""
        end = len(text)
        if not final:
            end = max(self.shown, len(text.rstrip("\ufffd")) - hold)
        if end > self.shown:
            yield text[self.shown : end]
            self.shown = end
