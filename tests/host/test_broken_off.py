"""Long runs are killed at many of their writes, and meet a full disk and one that can only be read.

The same command, given again, ends with what an undisturbed run ends with.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.tiny import checkpoint, prompts
from tests.host.breaking import Breaker, Work, refuses, survives_every_kill, writes_of

pytestmark = pytest.mark.soak  # minutes: every run compiles its programs anew, or reads them from the cache
KILLS = 24  # at most so many of a command's writes; a run of training has about a hundred
ANSWERS, RESULTS = "answers.jsonl", "results.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, questions and text to train on."""
    folder = tmp_path_factory.mktemp("broken-off")
    checkpoint(folder / "ckpt")
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


@pytest.fixture(params=[evaluation, bench, calibration, training], ids=lambda made: made.__name__)
def work(request: pytest.FixtureRequest, folder: Path) -> Work:
    return request.param(folder)


def test_killed(breaker: Breaker, work: Work, tmp_path: Path):
    count = writes_of(work, breaker, tmp_path)
    survives_every_kill(work, breaker, tmp_path, range(1, count + 1, -(-count // KILLS)))


@pytest.mark.parametrize("work", [evaluation, bench, training], indirect=True, ids=lambda made: made.__name__)
def test_a_disk_that_takes_nothing(breaker: Breaker, work: Work, tmp_path: Path):
    count = writes_of(work, breaker, tmp_path)
    refuses(work, breaker, tmp_path, "full", (1, count // 2, count - 1))
    refuses(work, breaker, tmp_path, "read-only", [1])
