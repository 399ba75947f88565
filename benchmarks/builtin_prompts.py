"""Cuts the prompts that ship as `--prompts builtin` from the held-out files of Python's standard library.

    python benchmarks/builtin_prompts.py > jaxspec/builtin/prompts.jsonl

A prompt is a stretch of a file that was held out from the builtin model's training (`train.data.text.is_held_out`),
from the beginning of a line to the beginning of another. Long files give more of them. The same Python gives the same.
"""

import json

from jaxspec.train.data import text

PROMPTS = 40
CHARACTERS = 500
SHORTEST = 1000  # a file with less has too little to go on with


def cut(document: text.Document, count: int) -> list[str]:
    """`count` prompts, evenly over a file; each ends where a line does, and the file goes on after it."""
    lines = document.text.splitlines(keepends=True)
    found = []
    for i in range(count):
        start = len(lines) * i // count
        prompt, line = "", start
        while len(prompt) < CHARACTERS and line < len(lines) - 1:
            prompt += lines[line]
            line += 1
        found.append(prompt)
    return found


def shares(sizes: list[int], total: int) -> list[int]:
    """One for each file, and of what is left the more the longer it is (by the largest remainder)."""
    spare = total - len(sizes)
    exact = [spare * size / sum(sizes) for size in sizes]
    counts = [1 + int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: int(exact[i]) - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def main() -> None:
    """Prints a line of JSON a prompt."""
    held_out = [document for document in text.standard_library() if text.is_held_out(document.name)]
    files = [document for document in held_out if len(document.text) >= SHORTEST]
    number = 0
    for document, count in zip(files, shares([len(document.text) for document in files], PROMPTS), strict=True):
        for prompt in cut(document, count):
            print(json.dumps({"question_id": number, "category": document.name, "turns": [prompt]}))
            number += 1


if __name__ == "__main__":
    main()
