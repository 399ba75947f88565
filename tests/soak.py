"""Options of pytest for the long tests: they run in parts, and a run that was stopped goes on.

`--soak` adds the tests that are marked so. `--part 2/8` runs the second of eight parts. `--resume` leaves out the tests
that passed before on the same state of the working tree; their names are kept under `.cache/soak`.
"""

import argparse
from pathlib import Path
from typing import Any

import pytest

from tests import tree_state

KEPT = tree_state.ROOT / ".cache" / "soak"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the full product of methods (slow)")
    parser.addoption("--part", type=part, default=(1, 1), metavar="K/N", help="run the K-th of N parts of the tests")
    parser.addoption("--resume", action="store_true", help="leave out what passed before on this state of the tree")


def part(text: str) -> tuple[int, int]:
    """Reads `2/8`."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"a part is given as 2/8, not {text!r}")
    return int(number), int(count)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--resume") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(KEPT / f"{tree_state.name()}.txt"), "passed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options: Any = config.option
    number, count = options.part
    wanted = [item for item in items if options.soak or not item.get_closest_marker("soak")]
    begin, end = ((at * len(wanted)) // count for at in (number - 1, number))  # neighbours share compiled fixtures
    known = passed_before(config)
    kept = [item for item in wanted[begin:end] if item.nodeid not in known]
    if len(kept) < len(items):
        running = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in running])
        items[:] = kept


def passed_before(config: pytest.Config) -> set[str]:
    """The tests that need not run again; a worker of xdist gets them from the process that started it."""
    given: Any = getattr(config, "workerinput", None)
    if given is not None:
        return set(given.get("passed", ()))
    keeper = config.pluginmanager.get_plugin("passed")
    return set() if keeper is None else set(keeper.before)


class Passed:
    """Records the tests that pass, and gives workers of xdist those that passed before."""

    def __init__(self, file: Path):
        self.file, self.failed = file, set[str]()
        self.before = file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["passed"] = self.before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.before:
            terminalreporter.write_line(f"{len(self.before)} tests were left out, which had passed: {self.file}")
