"""Tokens per second by batch size: up to which batch size is speculation faster?

python benchmarks/throughput.py [--target builtin] [--methods plain edd+chain,length=4 ...] [--rows 1 8 64]

Each method decodes the same 64 prompts in batches of `--rows` rows; all rows generate the same number
of tokens. Methods take turns. Times are medians of decoding without prefill. Methods that decide by costs use the costs
of this batch size (`jaxspec calibrate --batch-size`), which are measured first if none are stored.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxspec.decoding.request import Request
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import requests_of
from jaxspec.evaluate.questions import read_questions

PACKAGES = Path(__file__).parent / "package_prompts.jsonl"
FEWEST = 16  # prompts, even for fewer rows


def prompts() -> list[str]:
    """64 prompts of different lengths, shuffled."""
    packages = [question.turns[0] for question in read_questions(PACKAGES)]
    texts = [question.turns[0] for question in read_questions("builtin")] + packages
    texts += [text[: len(text) // 2] for text in packages[:8]]
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]


def tokens_per_second(engine: Engine, requests: Sequence[Request], rows: int) -> float:
    """Decodes all requests, batch by batch; returns tokens per second, without prefill."""
    batches = [engine.run(requests[i : i + rows]) for i in range(0, len(requests), rows)]
    tokens = sum(len(text.tokens) for batch in batches for text in batch)
    return tokens / sum(max(text.decode_seconds for text in batch) for batch in batches)


def compare(target: str, methods: Sequence[str], rows: int, new_tokens: int, repeats: int) -> dict[str, float]:
    """Tokens per second of each method at this number of rows."""
    model = Engine(target, "plain").model
    engines = {method: Engine.calibrated(model, method, batch_size=rows) for method in methods}
    requests = requests_of(model, prompts()[: max(rows, FEWEST)], max_new_tokens=new_tokens)
    found = {method: list[float]() for method in methods}
    texts = {method: [text.tokens for text in engine.run(requests[:rows])] for method, engine in engines.items()}
    assert all(each == texts[methods[0]] for each in texts.values()), "a method changed a text"
    for _ in range(repeats):
        for method, engine in engines.items():
            found[method].append(tokens_per_second(engine, requests, rows))
    return {method: statistics.median(each) for method, each in found.items()}


def main() -> None:
    """Prints one line of JSON for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin")
    chosen = ["plain", "edd+chain,length=2", "edd+chain,length=4", "edd+chain+length-ts", "ngram+chain"]
    parser.add_argument("--methods", nargs="+", default=chosen)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    for rows in asked.rows:
        found = compare(asked.target, asked.methods, rows, asked.max_new_tokens, asked.repeats)
        methods = {method: {"tokens_per_second": each} for method, each in found.items()}
        print(json.dumps({"batch_size": rows, "methods": methods}), flush=True)


if __name__ == "__main__":
    main()
