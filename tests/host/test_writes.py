"""Conversions are killed at each of their writes, and meet a full disk and one that can only be read.

Afterwards there is the complete output or none (of a file that was there before, the old one), and the same command,
given again, finishes the work.
"""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import checkpoints, hf_models
from tests.convert import eagle_heads
from tests.host.at_writes import READY, Ended, How, Order


class Breaker:
    """The program of `at_writes`, waiting for orders."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process

    def follow(self, order: Order) -> Ended:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
        self.process.stdin.flush()
        return Ended(**json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def breaker() -> Iterator[Breaker]:
    program = [sys.executable, "-m", "tests.host.at_writes"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == READY
        yield Breaker(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclasses.dataclass(frozen=True)
class Work:
    """A command that works on a folder, and what it makes there.

    Attributes:
        folder: with everything that the command reads, as it is before.
        command: in which FOLDER stands for a copy of the folder.
        out: what the command makes, in the folder.
        leaves: what a killed or failed run may leave besides, to go on from it.
    """

    folder: Path
    command: tuple[str, ...]
    out: str
    leaves: tuple[str, ...] = ()

    def order(self, place: Path, how: How = "never", at: int = 0) -> Order:
        return Order([part.replace("FOLDER", str(place)) for part in self.command], str(place), how, at)

    def fresh(self, place: Path) -> Path:
        """A new copy of the folder."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder, place)
        return place


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("conversion")
    hf_models.make("llama", folder / "hf", num_hidden_layers=1, vocab_size=259)
    checkpoints.byte_tokenizer().save_pretrained(folder / "hf")
    return Work(folder, ("jaxspec-convert", "llama", "FOLDER/hf", "FOLDER/ckpt"), "ckpt")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, conversion: Work, breaker: Breaker) -> Work:
    folder = tmp_path_factory.mktemp("head")
    place = conversion.fresh(folder / "made")
    hf_models.make("llama", place / "hf96", num_hidden_layers=1)
    target = ("jaxspec-convert", "llama", f"{place}/hf96", f"{folder}/ckpt")
    assert breaker.follow(Order([*target], str(folder))).code == 0
    eagle_heads.write(folder / "source", eagle_heads.weights(place / "hf96"))
    shutil.rmtree(place)
    out = "ckpt/heads/eagle"
    command = ("jaxspec-convert", "head", "FOLDER/source", f"FOLDER/{out}", "--target", "FOLDER/ckpt")
    return Work(folder, command, out)


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
    place = tmp_path / "place"
    undisturbed = breaker.follow(work.order(work.fresh(place)))
    assert undisturbed.code == 0, undisturbed.err
    expected = made(place, work)
    assert undisturbed.writes > 3 and any(name.startswith(work.out) for name in expected), expected
    for at in steps or range(1, undisturbed.writes + 1):
        killed = breaker.follow(work.order(work.fresh(place), "kill", at))
        assert killed.code == -9, (at, killed.err)
        whole = {name for name in made(place, work) if name.startswith(work.out) and "/." not in name}
        assert whole in (set(), {name for name in expected if name.startswith(work.out)}), at
        again = breaker.follow(work.order(place))
        done = again.code == 2 and "exists already" in again.err  # it was killed after the last of the work
        assert again.code == 0 or (whole and done), (at, again.err)
        assert made(place, work) == expected, (at, "something is missing, or was left behind")


def refuses(work: Work, breaker: Breaker, tmp_path: Path, how: How, steps: Sequence[int]) -> None:
    """The command ends in one sentence where the disk is full or can only be read, and leaves nothing half written."""
    place = tmp_path / "place"
    for at in steps:
        ended = breaker.follow(work.order(work.fresh(place), how, at))
        assert ended.code in (1, 2), (at, ended.code, ended.err)
        assert "Traceback" not in ended.err and ended.err.splitlines()[-1].startswith("error: "), (at, ended.err)
        assert len(ended.err.splitlines()[-1]) < 400
        assert made(place, work) == set(), (at, ended.err)
        again = breaker.follow(work.order(place))
        assert again.code == 0, (at, again.err)


def writes_of(work: Work, breaker: Breaker, tmp_path: Path) -> int:
    return breaker.follow(work.order(work.fresh(tmp_path / "place"))).writes


def test_a_conversion_is_killed_at_its_last_writes(conversion: Work, breaker: Breaker, tmp_path: Path):
    count = writes_of(conversion, breaker, tmp_path)
    survives_every_kill(conversion, breaker, tmp_path, [count // 2, count - 1, count])


@pytest.mark.soak
def test_a_conversion_is_killed_at_every_write(conversion: Work, breaker: Breaker, tmp_path: Path):
    survives_every_kill(conversion, breaker, tmp_path)


@pytest.mark.parametrize("how", [pytest.param("full", marks=pytest.mark.soak), "read-only"])
def test_a_conversion_meets_a_disk_that_takes_nothing(how: How, conversion: Work, breaker: Breaker, tmp_path: Path):
    steps = range(1, writes_of(conversion, breaker, tmp_path)) if how == "full" else [1]
    refuses(conversion, breaker, tmp_path, how, steps)


@pytest.mark.soak
def test_a_heads_conversion(head: Work, breaker: Breaker, tmp_path: Path):
    survives_every_kill(head, breaker, tmp_path)
    refuses(head, breaker, tmp_path, "full", range(1, writes_of(head, breaker, tmp_path)))
    refuses(head, breaker, tmp_path, "read-only", [1])
