"""A mutant: one small change that makes the library wrong, and the tests that must notice it."""

import abc
import dataclasses
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


class StaleError(ValueError):
    """The text that a mutant changes is not, or not exactly once, in its file."""


@dataclasses.dataclass(frozen=True)
class Mutant(abc.ABC):
    """One change to one file.

    Attributes:
        name: unique among all mutants.
        file: path from the repository's root.
        tests: arguments for pytest that select the tests which must fail, and which take a minute at most on an idle
            machine: files and tests, then perhaps `-k` and words of their names.
        equivalent: why no test can fail. Such a mutant is listed, and not run.
    """

    name: str
    file: str
    tests: tuple[str, ...]
    equivalent: str = dataclasses.field(default="", kw_only=True)

    @abc.abstractmethod
    def applied(self, source: str) -> str:
        """The changed text of the file. Raises StaleError if there is nothing to change."""

    def check(self) -> None:
        """Raises StaleError if the change no longer fits, or if a test file or function is not there."""
        self.applied((ROOT / self.file).read_text(encoding="utf-8"))
        for test in self.tests[: self.tests.index("-k")] if "-k" in self.tests else self.tests:
            check_test(test)


@dataclasses.dataclass(frozen=True)
class ByHand(Mutant):
    """A mutant that replaces a text, which stands exactly once in the file."""

    old: str
    new: str

    def applied(self, source: str) -> str:
        if (count := source.count(self.old)) != 1:
            raise StaleError(f"{self.name}: its text stands {count} times in {self.file}, not once: {self.old!r}")
        return source.replace(self.old, self.new)


def check_test(node: str) -> None:
    """Raises StaleError unless a test file defines what FILE::CLASS::FUNCTION[PARAMETERS] names."""
    file, *names = node.partition("[")[0].split("::")
    path = ROOT / file
    if not path.exists():
        raise StaleError(f"there is no {file}, which a mutant names")
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    for name in names:
        if f"def {name}(" not in source and f"class {name}:" not in source:
            raise StaleError(f"there is no {name} in {file}, which a mutant names")
