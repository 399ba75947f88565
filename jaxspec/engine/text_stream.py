"""Text of a single prompt while it is generated."""

from collections.abc import Iterator
from typing import Any

from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.processes import fetch


class Unfinished:
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


def pieces(session: Session, stops: StopStrings, unfinished: Unfinished, rounds: int) -> Iterator[str]:
    """Decodes a batch of one prompt, `rounds` rounds at a time, and yields each new part of its text."""
    prompt, stopped = session.texts[0].request.tokens, False
    while not stopped:
        session.advance(rounds)
        _, text, stopped = stops.cut(fetch(session.state.tokens)[0, len(prompt) : session.length[0]].tolist(), prompt)
        stopped |= session.finished
        yield from unfinished.more(text, final=stopped, hold=stops.longest)
