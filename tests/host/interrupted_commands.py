"""Commands that are killed at a write or at a random moment, or meet a full disk (`interrupting_program.py`)."""

import contextlib
import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.host.interrupting_program import READY, Ended, How, Order


class Breaker:
    """The program of `interrupting_program`, waiting for orders."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def follow(self, order: Order) -> Ended:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def breaking() -> Iterator[Breaker]:
    """Starts the program, and ends it."""
    program = [sys.executable, "-m", "tests.host.interrupting_program"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == READY
        yield Breaker(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclasses.dataclass(frozen=True)
class Work:
    """A command that works on a folder, and what it makes there.

    Attributes:
        command: in which FOLDER stands for a copy of the folder.
        out: what the command makes, in the folder.
        leaves: what a killed or failed run may leave besides, to resume from it.
        grows: files that are written line by line, and so may be unfinished.
        result: of a folder: what a run must end with, interrupted or not.
    """

    folder: Path
    command: tuple[str, ...]
    out: str
    leaves: tuple[str, ...] = ()
    grows: frozenset[str] = frozenset()
    result: Callable[[Path], Any] = lambda place: None

    def order(self, place: Path, how: How = "never", at: int = 0) -> Order:
        return Order([part.replace("FOLDER", str(place)) for part in self.command], str(place), how, at)

    def fresh(self, place: Path) -> Path:
        """A new copy of the folder."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder, place)
        return place


def made(place: Path, work: Work) -> set[str]:
    """The files that a command has left, but for those that a run goes on from."""
    new = {path.relative_to(place) for path in place.rglob("*") if path.is_file()} - {
        path.relative_to(work.folder) for path in work.folder.rglob("*")
    }
    drawn = re.compile("[0-9a-f]{32,}")  # in names of parameters' files
    names = {drawn.sub("*", str(path)) for path in new}
    return {name for name in names if not (work.leaves and name.startswith(work.leaves))}


def survives_every_kill(work: Work, breaker: Breaker, tmp_path: Path, steps: Sequence[int] | None = None) -> None:
    """Kills the command at each of its writes, or at these, and gives it again."""

    def kills(undisturbed: Ended) -> Iterator[tuple[How, int]]:
        assert undisturbed.writes > 3
        for at in steps or range(1, undisturbed.writes + 1):
            yield "kill", at

    assert set(_survives(work, breaker, tmp_path, kills)) == {-9}


def survives_random_kills(work: Work, breaker: Breaker, tmp_path: Path, count: int) -> None:
    """Kills the command at random moments, and gives it again. Some runs may be faster, and end before that."""
    moments = random.Random(work.out)
    seconds = min(breaker.follow(work.order(work.fresh(tmp_path / "place"))).seconds for _ in range(2))

    def kills(undisturbed: Ended) -> Iterator[tuple[How, int]]:
        for _ in range(count):
            yield "kill after", int(1000 * min(seconds, undisturbed.seconds) * moments.random())

    codes = _survives(work, breaker, tmp_path, kills)
    assert set(codes) <= {-9, 0} and codes.count(-9) > count // 3, codes


def _survives(
    work: Work, breaker: Breaker, tmp_path: Path, kills: Callable[[Ended], Iterator[tuple[How, int]]]
) -> list[int]:
    """Breaks the command off in each of these ways, gives it again, and compares. Returns the first runs' codes."""
    place, codes = tmp_path / "place", []
    undisturbed = breaker.follow(work.order(work.fresh(place)))
    assert undisturbed.code == 0, undisturbed.err
    expected, result = made(place, work), work.result(place)
    assert any(name.startswith(work.out) for name in expected), expected
    for how, at in kills(undisturbed):
        killed = breaker.follow(work.order(work.fresh(place), how, at))
        codes.append(killed.code)
        whole = {name for name in made(place, work) if name.startswith(work.out) and "/." not in name}
        assert whole in (set(), {name for name in expected if name.startswith(work.out)}), (at, killed)
        again = breaker.follow(work.order(place))
        done = again.code == 2 and "exists already" in again.err  # it was killed after the last of the work
        assert again.code == 0 or (whole and done), (at, again.err)
        assert made(place, work) == expected, (at, "something is missing, or was left behind")
        assert work.result(place) == result, at
    return codes


def refuses(work: Work, breaker: Breaker, tmp_path: Path, how: How, steps: Sequence[int]) -> None:
    """The command ends in one sentence where the disk is full or can only be read, and leaves nothing half written."""
    place = tmp_path / "place"
    for at in steps:
        ended = breaker.follow(work.order(work.fresh(place), how, at))
        assert ended.code in (1, 2), (at, ended.code, ended.err)
        assert "Traceback" not in ended.err and ended.err.splitlines()[-1].startswith("error: "), (at, ended.err)
        assert len(ended.err.splitlines()[-1]) < 400
        assert made(place, work) <= work.grows, (at, ended.err)
        again = breaker.follow(work.order(place))
        assert again.code == 0, (at, again.err)


def writes_of(work: Work, breaker: Breaker, tmp_path: Path) -> int:
    """Number of writes of an undisturbed run."""
    undisturbed = breaker.follow(work.order(work.fresh(tmp_path / "place")))
    assert undisturbed.code == 0, undisturbed.err
    return undisturbed.writes
