"""A program that runs commands and breaks each of them off at a chosen write, or after a chosen time.

It imports what the commands need once, and runs each of them in a process that it forks. Whatever Python writes below a
folder raises an audit event before it is done: files opened for writing, folders made, things renamed or removed.
At the n-th such event a hook kills the process or reports a full disk; or it refuses them all, as a disk that can only
be read.

Each line of stdin is an `Order` in JSON, and each line of stdout what became of it.
"""

import dataclasses
import errno
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.quick_runs import shorten

How = Literal["never", "kill", "kill after", "full", "read-only"]
READY = "ready"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEEDED = (
    "jaxspec.convert.llama",
    "jaxspec.evaluate.bench",
    "jaxspec.evaluate.evaluation",
    "jaxspec.train.methods.skip_search",
    "jaxspec.train.run.heads",
)


@dataclasses.dataclass(frozen=True)
class Order:
    """A command, and what happens to it at the write number `at` below a folder; "kill after": `at` milliseconds."""

    command: list[str]
    below: str
    how: How = "never"
    at: int = 0


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (-9: killed), the writes that it began, seconds, and its stderr."""

    code: int
    writes: int
    seconds: float
    err: str


def main() -> None:
    """Follows orders until stdin ends."""
    for name in NEEDED:
        importlib.import_module(name)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX has no backend yet, and so no threads
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(follow(Order(**json.loads(line))))), flush=True)


def follow(order: Order) -> Ended:
    """Runs one command in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        stderr, counted = Path(folder, "err"), Path(folder, "writes")
        counted.write_text("")
        began = time.perf_counter()
        if (child := os.fork()) == 0:
            code = 70
            try:
                code = run(order, stderr, counted)
            finally:
                os._exit(code)
        timer = threading.Timer(order.at / 1000, os.kill, (child, signal.SIGKILL))
        if order.how == "kill after":
            timer.start()
        _, status = os.waitpid(child, 0)
        timer.cancel()
        seconds = time.perf_counter() - began
        err = stderr.read_text(errors="replace") if stderr.exists() else ""
        return Ended(os.waitstatus_to_exitcode(status), len(counted.read_text()), seconds, err)


def run(order: Order, stderr: Path, counted: Path) -> int:
    """The exit code of a command, in the forked process."""
    from jaxspec.commands import convert, train
    from jaxspec.commands import main as jaxspec

    shorten(pytest.MonkeyPatch(), tree_sizes=(4,))
    programs = {"jaxspec": jaxspec.main, "jaxspec-convert": convert.main, "jaxspec-train": train.main}
    sys.stderr, sys.stdout = stderr.open("w", buffering=1), io.StringIO()
    begun, tally = 0, os.open(counted, os.O_WRONLY | os.O_APPEND)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal begun
        if not (path := written(event, arguments)) or not path.startswith(order.below):
            return
        begun += 1
        os.write(tally, b".")
        if order.how == "kill" and begun == order.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if order.how == "full" and begun >= order.at and event != "os.remove":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if order.how == "read-only":
            raise OSError(errno.EROFS, "Read-only file system", path)

    os.environ["JAXSPEC_CACHE"] = f"{order.below}/cache"
    sys.argv = order.command
    sys.addaudithook(hook)
    try:
        programs[order.command[0]]()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    except BaseException:
        traceback.print_exc()
        return 71
    return 0


def written(event: str, arguments: tuple[Any, ...]) -> str:
    """The path that an audit event is about to change; empty for every other event."""
    if event == "open":
        path, _, flags = arguments
        return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes) and flags & WRITING else ""  # noqa: PTH100
    if event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        path = arguments[0]
        return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes) else ""  # noqa: PTH100
    return ""


if __name__ == "__main__":
    main()
