"""What refilled rows save: rounds and time of many prompts of unequal budgets, by groups and by rows refilled.

python benchmarks/refill.py [--target builtin] [--methods plain ngram+chain eagle+chain] [--batch-sizes 8 16]

64 prompts: those of `--prompts builtin` and 24 from other packages (their 16, and 8 of them again, cut in half), each
with a budget of 12 to 180 tokens from a fixed seed. By groups, each batch is as long as its slowest text; refilled, a
row whose text is done goes to the next prompt. `idle` is the share of row-rounds, while prompts wait, in which a row
has no text. `listed` is the rounds of handing rows on without delay in order of arrival. Both ways take turns, and
times are medians; they hold prefill too. The texts are compared.
"""

import argparse
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
from jaxspec.evaluate.suites import read_questions

PACKAGES = Path(__file__).parent / "package_prompts.jsonl"
FEWEST, MOST = 12, 180  # new tokens


def requests_for(engine: Engine) -> list[Request]:
    """The 64 prompts, shuffled, each with its budget."""
    packages = [question.turns[0] for question in read_questions(PACKAGES)]
    texts = [question.turns[0] for question in read_questions("builtin")] + packages
    texts += [text[: len(text) // 2] for text in packages[:8]]
    random = np.random.default_rng(0)
    order, budgets = random.permutation(len(texts)), random.integers(FEWEST, MOST, len(texts), endpoint=True)
    return requests_of(engine.model, [texts[i] for i in order], max_new_tokens=budgets.tolist())


def by_groups(engine: Engine, requests: Sequence[Request], rows: int) -> tuple[list[Generation], int]:
    """Texts and rounds, one batch after the other."""
    texts, rounds = [], 0
    for i in range(0, len(requests), rows):
        group = engine.run(requests[i : i + rows])
        texts += group
        rounds += max(len(each.history.committed) for each in group)
    return texts, rounds


def by_rows(engine: Engine, requests: Sequence[Request], rows: int) -> tuple[list[Generation], int, float]:
    """Texts, rounds and the share of row-rounds without a text while prompts waited."""
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
    return [texts[place] for place in range(len(requests))], session.round, idle / waited


def listed(texts: Sequence[Generation], rows: int) -> int:
    """Rounds of handing rows on without delay, in order of arrival."""
    free = [0] * rows
    for text in texts:
        free[int(np.argmin(free))] += len(text.history.committed)
    return max(free)


def compare(engine: Engine, rows: int, repeats: int) -> dict[str, Any]:
    """What both ways take for one method and number of rows."""
    requests, seconds = requests_for(engine), {"groups": [], "refilled": []}
    (grouped, rounds), (texts, ours, idle) = by_groups(engine, requests, rows), by_rows(engine, requests, rows)
    assert [text.tokens for text in texts] == [text.tokens for text in grouped], "refilling changed a text"
    for _ in range(repeats):
        for way, run in (("groups", by_groups), ("refilled", by_rows)):
            began = time.perf_counter()
            run(engine, requests, rows)
            seconds[way].append(time.perf_counter() - began)
    took = {way: statistics.median(each) for way, each in seconds.items()}
    saved = 1 - ours / rounds
    return {
        "method": str(engine.method),
        "rows": rows,
        "rounds": {"groups": rounds, "refilled": ours, "listed": listed(texts, rows)},
        "idle": idle,
        "seconds": took,
        "saved_rounds": saved,
        "saved_seconds": 1 - took["refilled"] / took["groups"],
    }


def main() -> None:
    """Prints a line of JSON for each method and number of rows."""
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
