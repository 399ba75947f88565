"""Ctrl-C and termination, held back while Orbax's threads write: what they wrote afterwards would be left."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Holds SIGINT and SIGTERM back; calling what is yielded lets one that came through, as does the end."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # Python delivers signals to the main thread only
        return
    caught: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def check() -> None:
        if caught and callable(handler := handlers[signal.Signals(caught[0])]):
            handler(caught[0], None)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    check()
