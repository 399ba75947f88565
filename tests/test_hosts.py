"""Two processes with four devices each, over gloo: generation, training of a head, and going on after a kill."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import jaxspec
from tests.evaluate.tiny import checkpoint

MESH = ("--mesh", "data=4,model=2")
TRAIN = ("jaxspec.train.cli", "eagle", "--batch-size", 4, "--context", 32, "--save-every", 2, *MESH)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes, and text beside it."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "a.py").write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    return checkpoint(folder / "ckpt")


def both(module: str, *options: object) -> list[str]:
    """Runs a command as two processes that find each other; what each printed, in the order of their numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    join = ("--coordinator", place, "--processes", 2, "--process-id")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, (*options, *join, i))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=900) for process in running]
    for process, (_, err) in zip(running, said, strict=True):
        assert process.returncode == 0, err[-3000:]
    return [out for out, _ in said]


def weights(head: Path) -> dict:
    from jaxspec.checkpoint import read_arrays, read_shapes

    return read_arrays(head / "params", read_shapes(head / "params").keys())


def test_a_head_is_trained_goes_on_and_drafts(target: Path):
    where = ("--target", target, "--data", target.parent / "a.py", "--run", target.parent / "run")
    both(*TRAIN, *where, "--steps", 4, "--out", target.parent / "short")
    steps = [json.loads(line)["step"] for line in (target.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    both(*TRAIN, *where, "--steps", 6, "--out", target / "heads" / "eagle")  # goes on from step 4
    steps = [json.loads(line)["step"] for line in (target.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    short, long = weights(target.parent / "short"), weights(target / "heads" / "eagle")
    assert short.keys() == long.keys()
    assert any((short[name] != long[name]).any() for name in short)

    options = ("--target", target, "--method", "eagle+chain", "--prompt", "def f", "--max-new-tokens", 12)
    first, second = both("jaxspec.cli", "generate", *options, "--format", "json", *MESH)
    (line,) = [json.loads(line) for line in first.splitlines() if line.startswith("{")]  # gloo prints lines of its own
    assert not [line for line in second.splitlines() if line.startswith("{")]
    engine = jaxspec.Engine(str(target), "plain")
    assert line["tokens"] == engine.generate("def f", max_new_tokens=12)[0].tokens
