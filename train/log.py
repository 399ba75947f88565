"""What a run says while it trains: metrics as JSONL, and progress on stderr."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxspec.convert.progress import say

_SECONDS = 10  # between lines of progress
_FRAME = 0.5  # between updates of the bar
_AHEAD = 2  # steps that the host may be ahead of the device


class Log:
    """Writes `{"step": 1, "loss": …}` a step and `{"step": 500, "evaluation": {…}}` an evaluation.

    Measures wait on the device until they are shown or flushed, so that it need not wait for the host in between; the
    host waits for it, a few steps behind.

    Args:
        done: steps done before; what the file says of later ones, which are done again, is cut off.
        steps: that the run will have made in the end.
        tokens: of a step.
    """

    def __init__(self, file: Path, done: int, steps: int, tokens: int):
        self.done, self.steps, self.tokens = done, steps, tokens
        self.waiting: list[tuple[int, Mapping[str, jax.Array]]] = []
        cut(file, done)
        self.file = file.open("a", encoding="utf-8")
        self.closing = contextlib.ExitStack()
        self.show = self.closing.enter_context(_progress(done, steps))
        self.began, self.since, self.shown = time.monotonic(), done, time.monotonic()
        self.every = _FRAME if sys.stderr.isatty() else _SECONDS

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.close()
        self.file.close()

    def step(self, step: int, measures: Mapping[str, jax.Array]) -> None:
        """Takes what a step measured.

        Raises:
            ValueError: the loss is not finite; seen when it is shown or flushed.
        """
        if self.since == self.done and step == self.done + 1:
            # The first step compiles: what is said of speed begins after it.
            jax.block_until_ready(measures)
            self.began, self.since = time.monotonic(), step
        self.waiting.append((step, measures))
        if len(self.waiting) > _AHEAD:  # so that what is shown is true, and a signal is heeded soon
            jax.block_until_ready(self.waiting[-1 - _AHEAD][1])
        if step == self.steps or time.monotonic() - self.shown >= self.every:
            self.flush()
            self.shown = time.monotonic()
            rate = (step - self.since) / (self.shown - self.began) if step > self.since else 0.0
            self.show(step, float(measures["loss"]), rate * self.tokens, (self.steps - step) / rate if rate else 0.0)

    def evaluation(self, step: int, measured: Mapping[str, Any]) -> None:
        """Takes what was measured on held-out text. The time that it took counts in no speed."""
        self.file.write(json.dumps({"step": step, "evaluation": measured}) + "\n")
        say(
            f"step {step}: held out: "
            + ", ".join(f"{name} {_short(value)}" for name, value in measured.items() if name != "score")
        )
        self.began, self.since = time.monotonic(), step

    def flush(self) -> None:
        """Waits for the measures of all steps so far and writes them to disk."""
        for step, measures in self.waiting:
            values = {name: float(value) for name, value in measures.items()}
            if not math.isfinite(values["loss"]):
                raise ValueError(f"the loss at step {step} is {values['loss']}; lower --learning-rate")
            self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.waiting.clear()
        self.file.flush()
        os.fsync(self.file.fileno())


def cut(file: Path, done: int) -> None:
    """Keeps what the file says of the first `done` steps."""
    if not file.exists():
        return
    kept = "".join(json.dumps(line) + "\n" for line in read(file) if line["step"] <= done)
    part = file.with_name(f".{file.name}")
    part.write_text(kept, encoding="utf-8")
    part.replace(file)


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of metrics; one that a killed process left half written is left out."""
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_short, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _progress(done: int, steps: int) -> Iterator[Callable[[int, float, float, float], None]]:
    """Yields a function that is told step, loss, tokens a second and seconds left: a bar on a terminal, else a line."""
    if not sys.stderr.isatty():
        yield lambda step, loss, rate, left: say(
            f"step {step} of {steps}: loss {loss:.3f}, {rate:,.0f} tokens/s, {left:.0f} s left"
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=steps, completed=done)
        yield lambda step, loss, rate, left: bar.update(
            task, completed=step, description=f"loss {loss:.3f}  {rate:,.0f} tokens/s"
        )
