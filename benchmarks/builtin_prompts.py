"""Cuts the builtin model's test prompts, one from each file, and writes its training text.

    python benchmarks/builtin_prompts.py --training-text python-text > jaxspec/builtin/prompts.jsonl
    python benchmarks/builtin_prompts.py --packages > benchmarks/package_prompts.jsonl

The first command cuts `--prompts builtin` from 40 files of Python's standard library: of all files that are long
enough, it takes the 40 whose paths have the smallest CRC-32. The training text is all other files, so the model is
never trained on a prompt's file. The second command cuts prompts from other Python code: two files of each of eight
packages that jaxspec needs, chosen in the same way. A prompt is a part from the middle of its file; it consists of
whole lines. The same versions of Python and packages give the same prompts.
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
SHORTEST = 2000  # characters; a shorter file has too little text after the prompt
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
LEFT_OUT = ("test", "distutils")  # anywhere in a path; NumPy has distutils only for some versions of Python


def prompt_of(document: text.Document) -> str:
    """At least `CHARACTERS` characters from a third of the file on, in whole lines; the file continues after them."""
    lines = document.text.splitlines(keepends=True)
    line, prompt = len(lines) // 3, ""
    while len(prompt) < CHARACTERS and line < len(lines) - 1:
        prompt += lines[line]
        line += 1
    return prompt


def chosen(documents: Sequence[text.Document], count: int) -> list[text.Document]:
    """The `count` documents with the smallest CRC-32 of their name, among documents of at least `SHORTEST`."""
    long = [document for document in documents if len(document.text) >= SHORTEST]
    return sorted(long, key=lambda document: zlib.crc32(document.name.encode()))[:count]


def sources(package: str) -> list[text.Document]:
    """The Python files of an installed package, without tests; a document's name is its path in the package."""
    files = metadata.distribution(package).files or []
    kept = [file for file in files if file.suffix == ".py" and not any(word in str(file) for word in LEFT_OUT)]
    return [text.Document(str(file), file.read_text(encoding="utf-8")) for file in kept]


def of_packages() -> Iterator[dict[str, Any]]:
    """The prompts from packages: the first of each package, then the second of each."""
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
    """The prompts from files of the standard library, which are not in the training text."""
    for number, document in enumerate(documents):
        yield {"question_id": number, "category": document.name, "turns": [prompt_of(document)]}


def write_training_text(folder: Path, documents: Sequence[text.Document]) -> None:
    """Writes the files of the training text."""
    for document in documents:
        (folder / document.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / document.name).write_text(document.text, encoding="utf-8")


def main() -> None:
    """Prints one line of JSON for each prompt."""
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
