"""Measures what refilled rows save: rounds and time of prompts with unequal budgets, in groups and with refilled rows.

python benchmarks/refill.py [--target builtin] [--methods plain ngram+chain eagle+chain] [--batch-sizes 8 16]

There are 64 prompts: the 40 of `--prompts builtin` and 24 from other packages (16, and 8 of these again, cut in half).
Each has a budget of 12 to 180 tokens, drawn with a fixed seed. In groups, a batch runs until its slowest text is
finished. With rows refilled, a row whose text is finished takes the next prompt. `idle` is the share of row-rounds
without a text, while prompts wait. `listed` is the number of rounds if rows were refilled without delay in order of
arrival. Both ways take turns; times are medians and include prefill. `parts` splits the time into prefill, decoding and
`rest`, the host's work between them: refilling rows and cutting texts. With rows refilled, `prefill` is that of the
first prompts; the others are prefilled during decoding, in a thread of their own, for `beside` seconds. The script
checks that both ways give the same texts.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.reading_ahead import ReadingAhead
from jaxspec.engine.refilled import refilled
from jaxspec.engine.requests import requests_of
from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate.questions import read_questions

PACKAGES = Path(__file__).parent / "package_prompts.jsonl"
FEWEST, MOST = 12, 180  # new tokens of a prompt


def requests_for(engine: Engine) -> list[Request]:
    """The 64 prompts, shuffled, each with its budget."""
    packages = [question.turns[0] for question in read_questions(PACKAGES)]
    texts = [question.turns[0] for question in read_questions("builtin")] + packages
    texts += [text[: len(text) // 2] for text in packages[:8]]
    random = np.random.default_rng(0)
    order, budgets = random.permutation(len(texts)), random.integers(FEWEST, MOST, len(texts), endpoint=True)
    return requests_of(engine.model, [texts[i] for i in order], max_new_tokens=budgets.tolist())


@dataclasses.dataclass(frozen=True)
class Ran:
    """Results of one way.

    Attributes:
        texts: generations, in the order of requests.
        rounds: number of rounds of all batches.
        idle: share of row-rounds without a text while prompts waited; None for groups.
        prefill, decode: time in seconds.
        beside: time of prefill during decoding, in seconds.
    """

    texts: list[Generation]
    rounds: int
    idle: float | None
    prefill: float
    decode: float
    beside: float = 0.0


def by_groups(engine: Engine, requests: Sequence[Request], rows: int) -> Ran:
    """Decodes one batch after the other."""
    groups = [engine.run(requests[i : i + rows]) for i in range(0, len(requests), rows)]
    return Ran(
        texts=[text for group in groups for text in group],
        rounds=sum(max(len(each.history.committed) for each in group) for group in groups),
        idle=None,
        prefill=sum(group[0].prefill_seconds for group in groups),
        decode=sum(group[0].decode_seconds for group in groups),
    )


def by_rows(engine: Engine, requests: Sequence[Request], rows: int) -> Ran:
    """Decodes all requests in one batch whose rows are refilled."""
    program = engine.program(requests)
    session = Session(engine.model, program, requests[:rows], later=requests[rows:])
    ahead = ReadingAhead(engine.model, program, requests, rows, keep_state=False)
    waited, idle, advance = 0, 0, session.advance

    def counting(*given: Any, **named: Any) -> None:
        nonlocal waited, idle
        before, free, waiting = session.round, rows - len(session.texts), ahead.pending
        advance(*given, **named)
        if waiting:
            waited, idle = waited + rows * (session.round - before), idle + free * (session.round - before)

    session.advance = counting
    texts = dict(refilled(session, ahead, rows, StopStrings((), engine.model.tokenizer)))
    return Ran(
        texts=[texts[place] for place in range(len(requests))],
        rounds=session.round,
        idle=idle / waited,
        prefill=session.prefill_seconds,
        decode=session.decode_seconds,
        beside=sum(texts[place].prefill_seconds for place in range(rows, len(requests))),
    )


def listed(texts: Sequence[Generation], rows: int) -> int:
    """Number of rounds if rows were refilled without delay, in order of arrival."""
    free = [0] * rows
    for text in texts:
        free[int(np.argmin(free))] += len(text.history.committed)
    return max(free)


def compare(engine: Engine, rows: int, repeats: int) -> dict[str, Any]:
    """Rounds and times of both ways, for one method and number of rows."""
    requests, ways = requests_for(engine), {"groups": by_groups, "refilled": by_rows}
    parts: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    grouped, ours = (run(engine, requests, rows) for run in ways.values())
    assert [text.tokens for text in ours.texts] == [text.tokens for text in grouped.texts], "refilling changed a text"
    for _ in range(repeats):
        for way, run in ways.items():
            began = time.perf_counter()
            ran = run(engine, requests, rows)
            parts[way].append((time.perf_counter() - began, ran.prefill, ran.decode, ran.beside))
    median = {way: [statistics.median(each) for each in zip(*found, strict=True)] for way, found in parts.items()}
    took = {way: whole for way, (whole, *_) in median.items()}
    return {
        "method": str(engine.method),
        "rows": rows,
        "rounds": {"groups": grouped.rounds, "refilled": ours.rounds, "listed": listed(ours.texts, rows)},
        "idle": ours.idle,
        "seconds": took,
        "parts": {
            way: {"prefill": prefill, "decode": decode, "rest": whole - prefill - decode, "beside": beside}
            for way, (whole, prefill, decode, beside) in median.items()
        },
        "saved_rounds": 1 - ours.rounds / grouped.rounds,
        "saved_seconds": 1 - took["refilled"] / took["groups"],
    }


def main() -> None:
    """Prints one line of JSON for each method and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin")
    parser.add_argument("--methods", nargs="+", default=["plain", "ngram+chain", "eagle+chain,length=3"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    for method in asked.methods:
        engine = Engine(asked.target, method)
        for rows in asked.batch_sizes:
            print(json.dumps(compare(engine, rows, asked.repeats)), flush=True)


if __name__ == "__main__":
    main()
