"""The part of a growing text that may be shown."""

from collections.abc import Iterator
from typing import Any


class Unfinished:
    """The part of a growing text that may be shown: not half a character, not what may begin a stop string."""

    def __init__(self, tokenizer: Any):
        if tokenizer is None:
            raise ValueError("streaming text needs a tokenizer, and this checkpoint has none")
        self.shown = 0

    def more(self, text: str, *, final: bool, hold: int) -> Iterator[str]:
        """Yields what is new in `text`; keeps back `hold` characters and an unfinished one, unless it is final."""
        end = len(text)
        if not final:
            end = max(self.shown, len(text.rstrip("\ufffd")) - hold)
        if end > self.shown:
            yield text[self.shown : end]
            self.shown = end
