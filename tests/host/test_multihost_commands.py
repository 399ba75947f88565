"""Two processes with four devices each, over gloo: they convert a model, train a head for it, are killed and go on,
draft, and answer a suite."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoint.parameters import read_arrays, read_shapes
from jaxspec.convert.llama import export
from jaxspec.host.hosts import Hosts, check_alone
from jaxspec.host.processes import broadcast_from_first, largest
from jaxspec.options.shared import Devices
from jaxspec.train.run.folder import Run
from tests.evaluate.tiny import checkpoint
from tests.host.multihost import all_ended, start

MESH = ("--mesh", "data=4,model=2")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes, and text beside it."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "a.py").write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    return checkpoint(folder / "ckpt")


def weights(head: Path) -> dict[str, np.ndarray]:
    return read_arrays(head / "params", read_shapes(head / "params").keys())


@pytest.mark.soak
def test_a_model_is_converted_and_its_head_trained_killed_trained_on_and_drafts(target: Path):
    folder = target.parent
    export(target, folder / "hf")
    about = ("--target", target, "--data", folder / "a.py", "--run", folder / "run")
    steps = ("--steps", 12, "--batch-size", 4, "--context", 32, "--save-every", 2)
    train = ("jaxspec-train", "eagle", *about, *steps, *MESH)
    ask = ("--target", target, "--prompt", "def f", "--max-new-tokens", 12, "--method", "eagle+chain", *MESH)
    run, head = Run(folder / "run"), target / "heads" / "eagle"
    running = start([(*train, "--out", head)])
    while not run.started:
        assert all(process.poll() is None for process in running)
        time.sleep(0.02)
    for process in running:
        process.kill()
        process.communicate()
    assert not head.exists(), "it had ended before"
    run.metrics.write_text(run.metrics.read_text().replace('"step":1,', '"step":1,"before":1,'))
    convert = ("jaxspec-convert", "llama", folder / "hf", folder / "converted")
    texts = [f"def f{'x' * i}(" for i in range(11)]
    (folder / "questions.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    answer_all = ("--prompts", folder / "questions.jsonl", "--out", folder / "answers.jsonl", *ask[:2], *ask[4:])
    generate, evaluate = ("jaxspec", "generate", *ask, "--format", "json"), ("jaxspec", "eval", *answer_all)
    kept = ("--cache-features", folder / "features")
    first, second = all_ended(start([convert, (*train, "--out", head, *kept), generate, evaluate]))
    ours, theirs = weights(target), weights(folder / "converted")
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (folder / "converted" / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    curve = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
    assert curve == list(range(1, 13))
    assert '"before":1' in run.metrics.read_text(), "it began anew"
    assert all(np.isfinite(array).all() for array in weights(head).values())
    assert any((folder / "features").glob("window-*.npy"))

    answers = [[json.loads(line) for line in out.splitlines() if line[:1] == "{"] for out in (first, second)]
    ((answer,), nothing) = answers  # gloo prints lines of its own
    assert nothing == []
    alone = jaxspec.Engine(str(target), "plain").generate("def f", max_new_tokens=12)[0]
    assert answer["tokens"] == alone.tokens

    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    found = {line["index"]: line["turns"][0]["tokens"] for line in lines}
    several = jaxspec.Engine(str(target), "plain").generate(texts, max_new_tokens=12)
    assert found == {number: text.tokens for number, text in enumerate(several)}
    assert json.loads((folder / "answers.json").read_text())["answers"] == len(texts)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"processes": 2}, "--processes and --process-id need --coordinator"),
        ({"coordinator": "host:1", "processes": 2}, "needs --processes N and --process-id I"),
        ({"coordinator": "host:1", "processes": 2, "process_id": 2}, "--process-id must be from 0 to 1, not 2"),
    ],
)
def test_what_does_not_fit_is_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        Hosts(**options).join()
    with pytest.raises(ValueError, match=problem):
        Hosts(**options).place()


def test_a_command_of_one_process():
    with pytest.raises(ValueError, match="cannot be spread over several hosts"):
        Hosts(coordinator="auto").join(several=False)


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Sets the variables of SLURM and of TPU pods, to these alone."""

    def surround(variables: dict[str, str]) -> None:
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return surround


def test_a_command_without_a_mesh_beside_others_is_refused_with_the_line_to_type(around):
    command = ["/usr/bin/jaxspec", "generate", "--prompt", "two words"]
    for alone in ({}, {"SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "localhost"}):
        around(alone)
        check_alone(command)
    for variable, value, count in (("SLURM_STEP_NUM_TASKS", "4", 4), ("TPU_WORKER_HOSTNAMES", "a,b", 2)):
        around({variable: value})
        with pytest.raises(ValueError, match=f"one of {count} processes") as refused:
            check_alone(command)
        assert "run on all of them: jaxspec generate --prompt 'two words' --mesh model=N" in str(refused.value)
        assert f"env -u {variable} jaxspec generate --prompt 'two words'" in str(refused.value)


def test_the_place_of_a_process(around):
    assert Hosts(coordinator="host:1", processes=4, process_id=3).place() == (3, 4)
    around({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"})
    assert Hosts().place() == (0, 1)
    around({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"})
    assert Hosts().place() == (1, 2)
    around({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"})
    assert Hosts(coordinator="auto").place() == (2, 4)
    around({"TPU_WORKER_HOSTNAMES": "a,b"})
    with pytest.raises(ValueError, match="TPU_WORKER_ID does not give the number of this one"):
        Hosts().place()


def test_a_command_looks_for_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ValueError, match="without a mesh each would run all of this"):
        Devices().open()


def test_one_process_agrees_with_itself():
    assert broadcast_from_first(lambda: {"a": [1, None]}) == {"a": [1, None]}
    assert largest(0.1) == 0.1
    with pytest.raises(FileNotFoundError):
        broadcast_from_first(Path("/nowhere/at/all").read_text)
