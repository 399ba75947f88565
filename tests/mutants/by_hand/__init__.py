"""Mutants written by hand: what a slip of the pen could change. Each text file lists those of a part of the library.

Under a file's path stands the name of each mutant of it, then `-` and `+` lines: the text before and after. The tests
that must fail follow the mutant's name, or the path, for all mutants without tests of their own. `=` gives the reason
why no test can fail. Lines `NAME = text` at the top abbreviate tests, as `$NAME`.
"""

import shlex
import string
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import ByHand


def read(text: str) -> Iterator[ByHand]:
    """The mutants of one text file."""
    top, *files = text.split("\n\n")
    names = dict(line.split(" = ", 1) for line in top.splitlines() if not line.startswith("#"))

    def split(heading: str) -> tuple[str, tuple[str, ...]]:
        name, _, tests = heading.partition(": ")
        return name, tuple(shlex.split(string.Template(tests).substitute(names)))

    for part in files:
        lines = part.splitlines()
        file, shared = split(lines[0])
        headings = [at for at, line in enumerate(lines) if at and not line.startswith(("- ", "+ ", "= "))]
        for begin, end in zip(headings, [*headings[1:], len(lines)], strict=True):
            name, tests = split(lines[begin])
            changes = lines[begin + 1 : end]
            old, new, why = ("\n".join(line[2:] for line in changes if line.startswith(sign)) for sign in "-+=")
            yield ByHand(name, file, tests or shared, old, new, equivalent=why)


MUTANTS = tuple(
    mutant for path in sorted(Path(__file__).parent.glob("*.txt")) for mutant in read(path.read_text(encoding="utf-8"))
)
