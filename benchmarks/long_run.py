"""Whether a process that generates for a long time stays as large as it was.

python benchmarks/long_run.py [--target builtin] [--minutes 30] [--methods ngram+chain edd+chain,length=4]

It repeats a fixed list of calls in random order: single prompts, greedy and sampled, with stop strings,
log-probabilities and recorded rounds; more prompts than rows; streams, some of which are given up; and inputs that are
refused. After two passes through the list everything is compiled. From then on, three things are counted after each
pass: resident memory, whose growth is the slope of a line through the last two thirds of the passes; programs that were
compiled; and open files and threads.

It exits with 1 if memory grows by more than 10 MB per thousand calls, anything is compiled, or files or threads are
left open. Memory still settles during the first two thousand calls, so short runs may fail.
"""

import argparse
import dataclasses
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxspec
from jaxspec.evaluate.questions import read_questions

MOST_GROWTH = 10.0  # MB per thousand calls
WARM = 2  # passes
BATCH = 4
STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of this process after some calls.

    Attributes:
        resident: memory, MB.
        compiled: programs that were compiled since the start.
        open: open files and threads.
    """

    calls: int
    resident: float
    compiled: int
    open: int


def calls(engine: jaxspec.Engine, texts: Sequence[str]) -> list[Callable[[], object]]:
    """The calls of one engine, each of which can be repeated. Texts too long for a small model are cut."""

    def generate(*prompts: str, **settings: Any) -> Callable[[], object]:
        return lambda: engine.generate(prompts, batch_size=BATCH, truncate="left", **settings)

    def stream(prompt: str, pieces: int | None, **settings: Any) -> Callable[[], object]:
        """Reads so many pieces of a stream, and gives it up; None: reads all of it."""
        return lambda: list(islice(engine.stream(prompt, truncate="left", **settings), pieces))

    def refused(**settings: Any) -> Callable[[], object]:
        def run() -> None:
            try:
                engine.generate(texts[0], **settings)
            except ValueError:
                return
            raise AssertionError(f"{settings} was not refused")

        return run

    sampled = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
    return [
        *(generate(text, max_new_tokens=48) for text in texts[:3]),
        *(generate(text, max_new_tokens=24, **sampled) for text in texts[:3]),
        generate(texts[0], max_new_tokens=48, stop=["\n\n", "return"]),
        generate(texts[1], max_new_tokens=16, log_probs=True),
        generate(texts[1], max_new_tokens=16, record=True),
        generate(*texts[: BATCH + 3], max_new_tokens=32),
        generate(*texts[: BATCH + 3], max_new_tokens=[8, 40, 16, 24, 8, 32, 16], temperature=[0.0, 1.0] * 3 + [0.5]),
        stream(texts[0], None, max_new_tokens=32),
        stream(texts[1], None, max_new_tokens=32, **sampled),
        stream(texts[2], 1, max_new_tokens=32),
        refused(temperature=float("nan")),
        refused(max_new_tokens=10**9),
    ]


def sizes(every: Sequence[Callable[[], object]], minutes: float) -> Iterator[Size]:
    """Runs all calls again and again, and yields the size after each pass."""
    compiled, order = 0, random.Random(0)

    def listen(event: str, duration_secs: float, **about: str | int) -> None:
        nonlocal compiled
        compiled += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        began, number = time.monotonic(), 0
        while number < WARM or time.monotonic() - began < 60 * minutes:
            for call in order.sample(every, len(every)):
                call()
            number += 1
            if number == WARM:
                began = time.monotonic()
            gc.collect()
            handles = sum(1 for _ in Path("/proc/self/fd").iterdir()) + threading.active_count()
            yield Size(number * len(every), resident(), compiled, handles)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def resident() -> float:
    """This process's resident memory, MB."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1e3


def growth(found: Sequence[Size]) -> float:
    """MB per thousand calls: the slope of a line through the last two thirds of the sizes."""
    last = found[len(found) // 3 :]
    return 1e3 * float(np.polyfit([one.calls for one in last], [one.resident for one in last], 1)[0])


def faults(found: Sequence[Size]) -> list[str]:
    """What is wrong with the sizes after the first passes; `found` has at least six."""
    first, last, grown = found[0], found[-1], growth(found)
    wrong = [f"memory grows by {grown:.1f} MB per thousand calls"] if grown > MOST_GROWTH else []
    wrong += [f"{last.compiled - first.compiled} programs were compiled"] if last.compiled > first.compiled else []
    return wrong + ([f"{last.open - first.open} files or threads are left open"] if last.open > first.open else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--methods", nargs="+", default=["ngram+chain", "edd+chain,length=4"])
    options = parser.parse_args()
    if not STATUS.exists():
        parser.error("it reads /proc, which this system does not have")
    model = jaxspec.load(options.target)
    texts = [question.turns[0] for question in islice(read_questions("builtin"), BATCH + 3)]
    every = [call for method in options.methods for call in calls(jaxspec.Engine(model, method), texts)]
    found, said = [], 0.0
    for number, size in enumerate(sizes(every, options.minutes), 1):
        if number < WARM:
            continue
        found.append(size)
        if time.monotonic() - said > 60:
            said = time.monotonic()
            show(size)
    show(found[-1])
    if len(found) < 6:
        sys.exit("error: fewer than six passes after the first two; give more --minutes")
    print(f"{growth(found):.2f} MB per thousand calls, {len(found)} passes of {len(every)} calls")
    if wrong := faults(found):
        sys.exit("error: " + "; ".join(wrong))


def show(size: Size) -> None:
    print(
        f"{size.calls:6} calls: {size.resident:7.1f} MB, {size.compiled} programs, {size.open} files and threads",
        flush=True,
    )


if __name__ == "__main__":
    main()
