"""`jaxspec eval` of two processes is killed again and again, and ends with an undisturbed run's answers."""

import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.evaluate.tiny import checkpoint
from tests.host.multihost import all_ended, start

pytestmark = pytest.mark.soak  # minutes: every run loads JAX anew
QUESTIONS, KILLS = 36, 5
PATIENCE = 600  # seconds for one run to get as far as its kill, and for what is left of it to end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes, and questions for it."""
    folder = tmp_path_factory.mktemp("killed")
    checkpoint(folder / "ckpt")
    texts = (f"def f{'x' * (i % 7)}{i}(" for i in range(QUESTIONS))
    (folder / "questions.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return folder


def test_killed_five_times(folder: Path):
    moments = random.Random(2)
    sampling = ("--temperature", 1, "--top-k", 3, "--max-new-tokens", 32)

    def run(out: Path) -> list[subprocess.Popen]:
        about = ("--target", folder / "ckpt", "--prompts", folder / "questions.jsonl", "--batch-size", 4)
        how = ("--method", "ngram+chain", "--mesh", "data=2", "--out", out)
        return start([("jaxspec", "eval", *about, *sampling, *how)], devices=1, JAXSPEC_CACHE=str(folder / "cache"))

    undisturbed, out = folder / "undisturbed.jsonl", folder / "killed.jsonl"
    all_ended(run(undisturbed))
    kept = [0]
    for kill in range(KILLS):
        # Anywhere in this kill's part of the questions; the first may come before any answer.
        goal = moments.randint(kept[-1] + (kill > 0), max(kept[-1] + 1, (kill + 1) * QUESTIONS // (KILLS + 1)))
        running = run(out)
        try:
            wait_for(goal, out, running)
            time.sleep(moments.uniform(0, 0.1))
            moments.choice(running).kill()
            codes = [process.communicate(timeout=PATIENCE) and process.returncode for process in running]
        finally:
            for process in running:
                process.kill()
        assert all(codes), "it had ended before it was killed"
        kept.append(answers(out))
        assert kept[-1] >= kept[-2], "answers were lost"
    assert 0 < kept[-1] < QUESTIONS, kept
    assert f"answers of an earlier run: {kept[-1]}" in ended(run(out))
    assert len(out.read_text().splitlines()) == QUESTIONS
    assert out.read_bytes() == undisturbed.read_bytes()


def wait_for(goal: int, out: Path, running: list[subprocess.Popen]) -> None:
    """Waits until this many answers are on disk."""
    began = time.monotonic()
    while answers(out) < goal or not out.exists():
        assert all(process.poll() is None for process in running), [process.communicate() for process in running]
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.005)


def answers(out: Path) -> int:
    """Number of whole lines on disk."""
    return out.read_text().count("\n") if out.exists() else 0


def ended(running: list[subprocess.Popen]) -> str:
    """Stderr of all processes, which must succeed."""
    stderr = [process.communicate(timeout=PATIENCE)[1] for process in running]
    assert not any(process.returncode for process in running), stderr
    return "".join(stderr)
