"""The log of a run: metrics as JSONL, progress on stderr, and a figure."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.host import buckets
from jaxspec.host.atomic import write_whole
from jaxspec.host.json_lines import append_lines, to_line
from jaxspec.host.terminal import Progress, progress, say

_AHEAD = 2  # most steps that the host runs ahead of the device


class Log:
    """Writes a line `{"step": 1, "loss": …}` per step and `{"step": 500, "evaluation": {…}}` per evaluation.

    Metrics stay on the device until they are shown or flushed, so that the device never waits for the host. Before,
    `done` of `steps` were done; a step has `tokens` tokens. None as `file`: another process writes.
    """

    def __init__(self, file: Path | None, shown: Progress, done: int, steps: int, tokens: int):
        self.file, self.shown = file, shown
        self.done, self.steps, self.tokens = done, steps, tokens
        self.waiting: list[tuple[int, Mapping[str, jax.Array]]] = []
        self.lines: list[dict[str, Any]] = []
        self.began, self.since = time.monotonic(), done

    def step(self, step: int, measures: Mapping[str, jax.Array]) -> None:
        """Takes the metrics of a step. A loss that is not finite raises ValueError when it is shown or flushed."""
        if self.since == self.done and step == self.done + 1:
            # The first step compiles, so the speed is measured after it.
            jax.block_until_ready(measures)
            self.began, self.since = time.monotonic(), step
        self.waiting.append((step, measures))
        if len(self.waiting) > _AHEAD:  # keeps the shown speed correct, and the reaction to signals fast
            jax.block_until_ready(self.waiting[-1 - _AHEAD][1])
        if self.shown.due() or step == self.steps:
            self.flush()
            rate = (step - self.since) / (time.monotonic() - self.began) if step > self.since else 0.0
            shown = f"loss {float(measures['loss']):.3f}" + (f", {rate * self.tokens:,.0f} tokens/s" if rate else "")
            self.shown.show(step, shown, (self.steps - step) / rate if rate else None)

    def evaluation(self, step: int, measured: Mapping[str, Any]) -> None:
        """Takes the measurements on held-out text. Their time does not count in the speed."""
        self.lines.append({"step": step, "evaluation": measured})
        shown = ", ".join(f"{name} {_short(value)}" for name, value in measured.items() if name != "score")
        say(f"step {step}: held out: {shown}")
        self.began, self.since = time.monotonic(), step

    def flush(self) -> None:
        """Waits for the metrics of all steps so far and writes them to disk."""
        for step, measures in self.waiting:
            values = {name: float(value) for name, value in measures.items()}
            if not math.isfinite(values["loss"]):
                raise ValueError(f"the loss at step {step} is {values['loss']}; lower --learning-rate")
            self.lines.append({"step": step, **values})
        self.waiting.clear()
        if self.file is not None:
            append_lines(self.file, self.lines)
        self.lines.clear()


@contextlib.contextmanager
def open_log(file: Path | None, done: int, steps: int, tokens: int) -> Iterator[Log]:
    """Opens the log of a run. Lines of steps after `done` are removed, because these steps are repeated."""
    if file is not None and file.exists():
        write_whole(file, "".join(to_line(line) for line in read(file) if line["step"] <= done))
    with progress("step", steps, done) as shown:
        yield Log(file, shown, done, steps, tokens)
    buckets.flush()


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of metrics, without a line that a killed process left incomplete."""
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def draw_figure(metrics: Path, out: Path) -> None:
    """Draws loss and acceptance over the steps of a run as SVG, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say(f"no figure: matplotlib is not installed (pip install matplotlib); the numbers are in {metrics}")
        return
    lines = list(read(metrics))
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    evaluations = [(line["step"], line["evaluation"]) for line in lines if "evaluation" in line]
    acceptance = [(step, each["acceptance"]) for step, each in evaluations if each.get("acceptance")]
    drawn = Figure(figsize=(9, 3.5) if acceptance else (5, 3.5), layout="constrained")
    axes = drawn.subplots(1, 2 if acceptance else 1, squeeze=False)[0]
    steps, values = np.array(losses).reshape(-1, 2).T
    axes[0].plot(steps, values, color="0.8", linewidth=0.7, label="training, a step")
    width = max(1, len(values) // 50)
    smooth = np.convolve(values, np.ones(width) / width, "valid")
    axes[0].plot(steps[width - 1 :], smooth, label=f"training, mean of {width}")
    if held := [(step, each["loss"]) for step, each in evaluations if "loss" in each]:
        axes[0].plot(*zip(*held, strict=True), marker="o", markersize=3, label="held out")
    axes[0].set(xlabel="step", ylabel="loss", title="Loss")
    axes[0].legend(frameon=False)
    if acceptance:
        for position in range(max(len(each) for _, each in acceptance)):
            points = [(step, each[position]) for step, each in acceptance if position < len(each)]
            axes[1].plot(*zip(*points, strict=True), marker="o", markersize=3, label=f"{position}-α")
        axes[1].set(xlabel="step", ylabel="acceptance", ylim=(0, 1), title="Acceptance by position, held out")
        axes[1].legend(frameon=False)
    from jaxspec.evaluate.sweep import to_svg  # it imports much

    write_whole(out, to_svg(drawn))


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_short, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)
