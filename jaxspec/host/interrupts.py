"""Delays Ctrl-C and termination while something must not be interrupted, such as Orbax's writing threads."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Held:
    """The held signals, and their handlers by number."""

    caught: list[int]
    handlers: dict[int, Any]

    def release(self) -> None:
        """Delivers the first held signal."""
        if self.caught and callable(handler := self.handlers[self.caught[0]]):
            handler(self.caught[0], None)


@contextlib.contextmanager
def deferred() -> Iterator[Held]:
    """Holds SIGINT and SIGTERM; the first is delivered at the end, or by `release`."""
    held = Held([], {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)})
    if threading.current_thread() is not threading.main_thread():
        yield held  # Python delivers signals to the main thread only
        return
    for number, handler in held.handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, _: held.caught.append(number))
    try:
        yield held
    finally:
        for number, handler in held.handlers.items():
            signal.signal(number, handler)
    held.release()
