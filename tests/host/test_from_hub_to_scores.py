"""A long evaluation at small size: a model of the hub into a bucket, a head for it, and the scores of four machines."""

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxspec.convert.llama import export
from jaxspec.host.buckets import to_path
from jaxspec.train.run.folder import Run
from tests import hub
from tests.bucket import NAME, Bucket
from tests.evaluate.tiny import checkpoint
from tests.host.multihost import all_ended, start

pytestmark = pytest.mark.soak
CKPT, DATA, QUESTIONS = (f"gs://{NAME}/{name}" for name in ("ckpt", "data", "questions.jsonl"))
HEAD, MACHINES, TEXTS = f"{CKPT}/heads/eagle", 4, 160


@pytest.fixture
def around(in_bucket: Bucket, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of the commands: a bucket with text and questions, and a hub with a model in several files."""
    export(checkpoint(tmp_path / "tiny"), tmp_path / "hf", shard_bytes=20_000)
    assert len([*(tmp_path / "hf").glob("model-*.safetensors")]) > 2
    to_path(f"{DATA}/a.py").write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    texts = [f"def f{'x' * (i % 7)}{i}(" for i in range(TEXTS)]
    to_path(QUESTIONS).write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    with hub.running({"org/model": tmp_path / "hf"}, tmp_path / "hub") as there:
        cache = {"JAXSPEC_CACHE": str(tmp_path / "cache")}
        yield {**in_bucket.environment, **there.environment(tmp_path / "hub"), **cache}


def test_from_the_hub_to_scores(around: dict[str, str], in_bucket: Bucket, tmp_path: Path):
    all_ended(start([("jaxspec-convert", "llama", "org/model", CKPT)], processes=2, devices=1, **around))
    run = Run(to_path(f"gs://{NAME}/run"))
    train_in_two_goes(run, around)
    assert "ckpt/heads/eagle/config.json" in in_bucket.names()

    alone, merged = tmp_path / "alone.jsonl", tmp_path / "merged.jsonl"
    parts = [f"gs://{NAME}/{number}.jsonl" for number in range(1, MACHINES + 1)]
    sampling = ("--temperature", 1, "--top-k", 3, "--max-new-tokens", 24, "--batch-size", 2)
    about = ("jaxspec", "eval", "--target", CKPT, "--prompts", QUESTIONS, "--method", "eagle+chain", *sampling)
    of_part = lambda number: (*about, "--shard", f"{number}/{MACHINES}", "--out", parts[number - 1])
    one = lambda command: start([command], processes=1, devices=1, **around)
    killed_after_its_first_answers(one(of_part(1))[0], parts[0])
    several = [one(of_part(number))[0] for number in range(2, MACHINES + 1)]
    all_ended([*one(of_part(1)), *several])
    all_ended(one((*about, "--out", alone)))
    all_ended(one(("jaxspec", "eval", "--merge", *parts, "--out", merged)))
    assert merged.read_bytes() == alone.read_bytes()


def killed_after_its_first_answers(machine: subprocess.Popen, answers: str) -> None:
    """Kills an evaluation whose first answers are in the bucket."""
    file = to_path(answers)
    while not (file.exists() and file.read_text()):
        assert machine.poll() is None, machine.communicate()
        time.sleep(0.01)
    machine.kill()
    machine.communicate()
    assert len(file.read_text().splitlines()) < TEXTS // MACHINES, "it had ended before"


def train_in_two_goes(run: Run, around: dict[str, str]) -> None:
    """Trains a head on two processes of four devices. They are killed, and go on with another mesh."""
    about = ("--target", CKPT, "--data", DATA, "--out", HEAD, "--run", run.folder)
    about = (*about, "--cache-features", f"gs://{NAME}/features")
    steps = ("--steps", 12, "--batch-size", 8, "--context", 32, "--save-every", 2)
    train = ("jaxspec-train", "eagle", *about, *steps)
    running = start([(*train, "--mesh", "data=4,model=2")], processes=2, devices=4, **around)
    while not run.started:
        assert all(process.poll() is None for process in running), [process.communicate() for process in running]
        time.sleep(0.02)
    for process in running:
        process.kill()
        process.communicate()
    begun = run.metrics.read_text().splitlines()
    run.metrics.write_text("".join(f'{line[:-1]}, "first": 1}}\n' for line in begun))
    all_ended(start([(*train, "--mesh", "data=8")], processes=2, devices=4, **around))
    curve = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in curve if "loss" in line] == list(range(1, 13))
    assert 0 < sum("first" in line for line in curve) < len(curve), "it began anew, or had ended before"
    losses = [line["loss"] for line in curve if "loss" in line]
    assert all(after < 1.2 * before for before, after in itertools.pairwise(losses))
