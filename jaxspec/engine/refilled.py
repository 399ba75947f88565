"""Decodes any number of prompts in a batch of few rows: when a row's text is finished, the next prompt takes the
row."""

from collections.abc import Iterator

from jaxspec.engine.finished_text import text_of_row
from jaxspec.engine.generation import Generation
from jaxspec.engine.reading_ahead import ReadingAhead
from jaxspec.engine.session import UNLIMITED, Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.processes import fetch

BETWEEN_STOPS = 8  # rounds between two looks for stop strings


def refilled(session: Session, ahead: ReadingAhead, rows: int, stops: StopStrings) -> Iterator[tuple[int, Generation]]:
    """Yields (index of the prompt, result) when each text is finished, in any order.

    Between two calls of the loop, free rows get prompts that are ready. During each call, one chunk of the next prompt
    is read.

    Args:
        session: the batch, which decodes the first prompts.
        ahead: the waiting prompts.
        rows: number of used rows, from the first.
    """
    while session.texts or ahead.pending:
        for row in [row for row in session.texts if session.done[row]]:
            result = text_of_row(session, row, stops)
            yield session.texts.pop(row).place, result
        while ahead.hand_over(session, rows) and ahead.chunks_left and len(session.texts) < rows:
            ahead.read_chunk()
        if not session.texts and ahead.chunks_left:
            ahead.read_chunk()
        elif session.texts and not any(session.done[row] for row in session.texts):  # a first token may end a text
            waits = ahead.chunks_left > 1 or (ahead.chunks_left and len(session.texts) < rows)
            rounds = 1 if waits else BETWEEN_STOPS if stops else UNLIMITED
            with ahead.reading():
                session.advance(rounds, more=1)
            session.stop(stopped_rows(session, stops) if stops else [])


def stopped_rows(session: Session, stops: StopStrings) -> list[int]:
    """Rows whose text has a stop string."""
    tokens, found = fetch(session.state.tokens), []
    for row, text in session.texts.items():
        if not session.done[row]:
            _, _, stopped = stops.cut(
                tokens[row, len(text.request.tokens) : session.length[row]].tolist(), text.request.tokens
            )
            found += [row] * stopped
    return found
