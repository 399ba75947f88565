"""Long runs are killed at many of their writes and at random moments, and meet a full or a read-only disk.

The same command, given again, ends with what an undisturbed run ends with.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.tiny import checkpoint, prompts
from tests.host.interrupted_commands import (
    Breaker,
    Work,
    refuses,
    survives_every_kill,
    survives_random_kills,
    writes_of,
)

pytestmark = pytest.mark.soak  # minutes: every run compiles its programs anew, or reads them from the cache
KILLS = 24  # at most so many of a command's writes; a run of training has about a hundred
MOMENTS = 10
ANSWERS, RESULTS = "answers.jsonl", "results.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, questions and text to train on."""
    folder = tmp_path_factory.mktemp("broken-off")
    checkpoint(folder / "ckpt")
    checkpoint(folder / "deep", num_layers=4)
    prompts(folder / "questions.jsonl", [{"prompt": f"def f{i}("} for i in range(3)])
    (folder / "text.py").write_text("def f(x):\n    return x + 1\n\n\n" * 40)
    return folder


def evaluation(folder: Path) -> Work:
    about = ("--target", "FOLDER/ckpt", "--prompts", "FOLDER/questions.jsonl", "--max-new-tokens", "8")
    command = ("jaxspec", "eval", *about, "--method", "ngram+chain", "--batch-size", "1", "--out", f"FOLDER/{ANSWERS}")
    grows = frozenset({ANSWERS, "answers.json"})
    return Work(folder, command, ANSWERS, ("cache/",), grows, lambda place: (place / ANSWERS).read_bytes())


def bench(folder: Path) -> Work:
    """Its log is what it goes on from."""
    about = ("--target", "FOLDER/ckpt", "--prompts", "FOLDER/questions.jsonl", "--max-new-tokens", "8")
    how = ("--methods", "plain", "ngram+chain", "--repeats", "1", "--no-prices", "--json", f"FOLDER/{RESULTS}")

    def counts(place: Path) -> Any:
        methods = json.loads((place / RESULTS).read_text())["methods"]
        return {name: (found["tokens"], found["rounds"], found["tau"]) for name, found in methods.items()}

    return Work(folder, ("jaxspec", "bench", *about, *how), RESULTS, ("cache/", f"{RESULTS}."), result=counts)


def calibration(folder: Path) -> Work:
    command = ("jaxspec", "calibrate", "--target", "FOLDER/ckpt", "--head", "ngram")
    return Work(folder, command, "cache/costs", ("cache/compiled/",))


def training(folder: Path) -> Work:
    """Its losses are compared bit by bit, those of the steps before the kill too."""
    about = ("--target", "FOLDER/ckpt", "--data", "FOLDER/text.py", "--out", "FOLDER/head")
    how = ("--steps", "3", "--save-every", "1", "--batch-size", "1", "--context", "32", "--evaluate-every", "3")

    def losses(place: Path) -> list[tuple[int, float]]:
        rows = (json.loads(line) for line in (place / "head.run/metrics.jsonl").read_text().splitlines())
        return [(row["step"], row["loss"]) for row in rows]

    return Work(folder, ("jaxspec-train", "medusa", *about, *how), "head", ("cache/", "head.run/"), result=losses)


def search(folder: Path) -> Work:
    """Trials are counted, not compared: their speedups come from times that each run measures."""
    about = ("--target", "FOLDER/deep", "--data", "FOLDER/text.py", "--out", "FOLDER/set", "--trials", "3")
    how = ("--samples", "2", "--prompt-tokens", "6", "--max-new-tokens", "8", "--method", "layer-skip+chain,length=2")

    def trials(place: Path) -> int:
        return len((place / "set.run/trials.jsonl").read_text().splitlines())

    return Work(folder, ("jaxspec-train", "skip-search", *about, *how), "set", ("cache/", "set.run/"), result=trials)


@pytest.fixture(params=[evaluation, bench, calibration, training, search], ids=lambda made: made.__name__)
def work(request: pytest.FixtureRequest, folder: Path) -> Work:
    return request.param(folder)


def test_killed(breaker: Breaker, work: Work, tmp_path: Path):
    count = writes_of(work, breaker, tmp_path)
    survives_every_kill(work, breaker, tmp_path, range(1, count + 1, -(-count // KILLS)))


def test_killed_at_any_moment(breaker: Breaker, work: Work, tmp_path: Path):
    survives_random_kills(work, breaker, tmp_path, MOMENTS)


@pytest.mark.parametrize("work", [evaluation, bench, training, search], indirect=True, ids=lambda made: made.__name__)
def test_a_disk_that_takes_nothing(breaker: Breaker, work: Work, tmp_path: Path):
    count = writes_of(work, breaker, tmp_path)
    refuses(work, breaker, tmp_path, "full", (1, count // 2, count - 1))
    refuses(work, breaker, tmp_path, "read-only", [1])
