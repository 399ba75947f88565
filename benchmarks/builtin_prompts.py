"""Cuts the prompts that the builtin model is measured on, one a file, and writes the text that it reads.

    python benchmarks/builtin_prompts.py --training-text python-text > jaxspec/builtin/prompts.jsonl
    python benchmarks/builtin_prompts.py --packages > benchmarks/package_prompts.jsonl

The first prompts, `--prompts builtin`, come from 40 files of Python's standard library, those of least CRC-32 of their
path among those that are long enough; the training text is all the others, so no prompt's file is ever trained on. The
second are Python that is not the standard library: two files of each of eight packages that jaxspec needs, chosen in
the same way. A prompt is a stretch from the middle of its file, from the beginning of a line to the beginning of
another. The same versions give the same.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxspec.train.data import text

PROMPTS = 40
CHARACTERS = 500
SHORTEST = 2000  # a file with less has too little to go on with
PACKAGES = {
    "chex": "Apache-2.0",
    "flax": "Apache-2.0",
    "huggingface-hub": "Apache-2.0",
    "jax": "Apache-2.0",
    "numpy": "BSD-3-Clause",
    "optax": "Apache-2.0",
    "orbax-checkpoint": "Apache-2.0",
    "transformers": "Apache-2.0",
}
"""Packages that every installation of jaxspec has, and their licenses."""
OF_A_PACKAGE = 2
LEFT_OUT = ("test", "distutils")  # wherever they stand in a path; the latter is not in every Python's NumPy


def prompt_of(document: text.Document) -> str:
    """A stretch from a third of the file on; it ends where a line does, and the file goes on after it."""
    lines = document.text.splitlines(keepends=True)
    line, prompt = len(lines) // 3, ""
    while len(prompt) < CHARACTERS and line < len(lines) - 1:
        prompt += lines[line]
        line += 1
    return prompt


def chosen(documents: Sequence[text.Document], count: int) -> list[text.Document]:
    """Those of least CRC-32 of their name, among those that are long enough."""
    long = [document for document in documents if len(document.text) >= SHORTEST]
    return sorted(long, key=lambda document: zlib.crc32(document.name.encode()))[:count]


def sources(package: str) -> list[text.Document]:
    """The Python files of an installed package, named by their path in it, without tests."""
    files = metadata.distribution(package).files or []
    kept = [file for file in files if file.suffix == ".py" and not any(word in str(file) for word in LEFT_OUT)]
    return [text.Document(str(file), file.read_text(encoding="utf-8")) for file in kept]


def of_packages() -> Iterator[dict[str, Any]]:
    """The prompts from packages, a first one of each and then a second."""
    found = {package: chosen(sources(package), OF_A_PACKAGE) for package in PACKAGES}
    for i in range(OF_A_PACKAGE):
        for package, documents in found.items():
            yield {
                "question_id": f"{package}-{i}",
                "category": f"{package} {metadata.version(package)}",
                "file": documents[i].name,
                "license": PACKAGES[package],
                "turns": [prompt_of(documents[i])],
            }


def of_standard_library(documents: Sequence[text.Document]) -> Iterator[dict[str, Any]]:
    """The prompts from the files that are left out of the training text."""
    for number, document in enumerate(documents):
        yield {"question_id": number, "category": document.name, "turns": [prompt_of(document)]}


def write_training_text(folder: Path, documents: Sequence[text.Document]) -> None:
    """Writes the files of the training text."""
    for document in documents:
        (folder / document.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / document.name).write_text(document.text, encoding="utf-8")


def main() -> None:
    """Prints a line of JSON a prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--training-text", type=Path, metavar="FOLDER", help="write all other files here")
    what.add_argument("--packages", action="store_true", help="cut them from other packages' sources")
    asked = parser.parse_args()
    if asked.packages:
        prompts = of_packages()
    else:
        documents = text.standard_library()
        held_out = chosen(documents, PROMPTS)
        prompts = of_standard_library(held_out)
        if asked.training_text is not None:
            names = {document.name for document in held_out}
            write_training_text(asked.training_text, [each for each in documents if each.name not in names])
    for prompt in prompts:
        print(json.dumps(prompt))


if __name__ == "__main__":
    main()
