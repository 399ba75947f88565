"""If one of several processes fails or is terminated, all end, and the reason is printed once.

A process that waits for others inside a computation receives neither signals nor exceptions. So a thread in each
process watches the key-value store that JAX keeps in the first process, and ends its process when a reason appears.
"""

import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from jaxspec.host import buckets, unfinished

EVERY = 1.0  # seconds between two looks
GRACE = 15.0  # seconds in which the main thread may clean up, or save, before the process is ended under it
PATIENCE = 5.0  # seconds in which the first process should have printed the reason
REASON, PRINTED, GONE = "jaxspec/reason", "jaxspec/printed", "jaxspec/gone/{}"
_SIGNALS = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why all end: the process that ended first, a sentence for the user or nothing, and the exit code of all."""

    process: int
    sentence: str
    code: int


class Watch:
    """Looks for the reason, in a thread of its own; see `begin`."""

    def __init__(self, client: Any, process: int, count: int):
        """`client` is JAX's, of the first process's store."""
        self.client, self.process, self.count = client, process, count
        self.lock, self.printed = threading.RLock(), False  # a signal may find the main thread inside of it
        self.ending = False  # whether the main thread is on its way out
        self.signals, wake = os.pipe()
        os.set_blocking(wake, False)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(wake, warn_on_full_buffer=False)  # written to even while Python runs no signal handler
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def record(self, sentence: str, code: int) -> Reason:
        """Records why this process ends. Returns the first recorded reason, which one process prints."""
        if threading.current_thread() is threading.main_thread():
            self.ending = True
            for number in _SIGNALS:  # another one would break off what cleans up
                signal.signal(number, signal.SIG_IGN)
        reason = Reason(self.process, sentence, code)
        try:
            self.client.key_value_set(REASON, json.dumps(dataclasses.asdict(reason)))
        except Exception:  # another was quicker, or the store is gone with the first process
            reason = self._reason() or reason
        self._print(reason, own=sentence)
        return reason

    def leave(self) -> NoReturn:
        """Ends this process by the recorded reason. The first process ends last, because it keeps the store."""
        with self.lock:  # one thread alone
            reason = self._reason()
            unfinished.remove_all()
            with contextlib.suppress(OSError):
                buckets.flush()
            if self.process:
                self._set(GONE.format(self.process))
            else:
                deadline = time.monotonic() + GRACE + PATIENCE
                while time.monotonic() < deadline and not all(self._get(GONE.format(i)) for i in range(1, self.count)):
                    time.sleep(EVERY / 10)
            for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
                with contextlib.suppress(OSError, ValueError, AttributeError):  # its reader has gone, or there is none
                    stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
            os._exit(1 if reason is None else reason.code)

    def _watch(self) -> None:
        while (reason := self._reason_of_signal() or self._reason()) is None:
            pass  # `_reason_of_signal` waits
        self._print(reason)
        if not self.ending:
            os.kill(os.getpid(), signal.SIGTERM)  # ends the main thread, unless it is inside a computation
        time.sleep(GRACE)
        self.leave()

    def _reason_of_signal(self) -> Reason | None:
        """Waits a while for a signal to this process, and records it as the reason; None without one."""
        ready, _, _ = select.select([self.signals], [], [], EVERY)
        came = os.read(self.signals, 64) if ready else b""
        return next((self.record(word, 128 + number) for number, word in _SIGNALS.items() if number in came), None)

    def _reason(self) -> Reason | None:
        found = self._get(REASON)
        return None if found is None else Reason(**json.loads(found))

    def _print(self, reason: Reason, own: str | None = None) -> None:
        """Prints the reason once, in the first process if that can; `own` is this process's own sentence."""
        if self.process:
            deadline = time.monotonic() + PATIENCE
            while reason.process == self.process and not self._get(PRINTED):
                if time.monotonic() > deadline:
                    break
                time.sleep(EVERY / 10)
            else:
                return
        with self.lock:
            if self.printed:
                return
            self.printed = True
        place = "" if own == reason.sentence or reason.process == self.process else f"process {reason.process}: "
        if reason.sentence:
            print(f"{place}{reason.sentence}", file=sys.__stderr__, flush=True)
        self._set(PRINTED)

    def _get(self, key: str) -> str | None:
        try:
            return self.client.key_value_try_get(key)
        except Exception:  # not there, or the store is gone; then JAX ends this process
            return None

    def _set(self, key: str) -> None:
        with contextlib.suppress(Exception):  # as above
            self.client.key_value_set(key, "yes")


_running: list[Watch] = []


def begin(client: Any, process: int, count: int) -> None:
    """Starts to watch, after the processes have joined."""
    _running.append(Watch(client, process, count))


def running() -> Watch | None:
    """This process's watch, if it is one of several."""
    return _running[0] if _running else None
