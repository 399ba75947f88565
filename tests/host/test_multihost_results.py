"""Two processes with two devices each, and four with one, give what one process with four gives: tokens, rounds, files,
and one voice."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxspec.checkpoint.heads import HeadConfig, write_head
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import read_arrays, read_shapes
from tests.evaluate.tiny import checkpoint
from tests.host.multihost import Command, all_ended, start
from tests.lossless.harness import early_exit_head

MESH = "data=2,model=2"
pytestmark = pytest.mark.soak  # minutes; test_processes.py, which is shorter, is not
SAMPLING = ("--temperature", 1, "--top-k", 2, "--max-new-tokens", 8)  # two likeliest tokens: text that repeats itself


def python_file(folder: Path) -> Path:
    """Text to cut prompts from."""
    file = folder / "a.py"
    file.write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    return file


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By number of processes, the folder of what the same commands wrote."""
    folder = tmp_path_factory.mktemp("same")
    target, text = checkpoint(folder / "ckpt"), python_file(folder)
    turns = [[f"def f{'x' * (5 * i)}(", "and now"][: 1 + i // 2] for i in range(3)]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns))
    found = {}
    for processes in (4, 2, 1):  # the later ones find the costs that the first have measured
        found[processes] = out = folder / f"of-{processes}"
        out.mkdir()
        about = ("--target", target, "--prompts", questions, "--batch-size", 2, "--mesh", MESH, *SAMPLING)
        methods = ("--methods", "ngram+budgeted", "--repeats", 1, "--no-prices")
        running = start(
            [
                ("jaxspec", "bench", *about, *methods, "--json", out / "bench.json", "--report", out / "page.html"),
                ("jaxspec", "eval", *about, "--method", "ngram+chain", "--out", out / "eval.jsonl", "--stop", "fz"),
                ("budgets", target, MESH, out / "budgets.json"),
                (
                    *("jaxspec-train", "generate", "--target", target, "--data", text, "--out", out / "texts.jsonl"),
                    *("--samples", 3, "--prompt-tokens", 8, "--batch-size", 2, "--method", "ngram+chain"),
                    *("--greedy-tokens", 2, "--mesh", MESH, *SAMPLING),
                ),
            ],
            processes,
            devices=4 // processes,
            JAXSPEC_CACHE=str(folder / "cache"),
            DELAY="0.5",
        )
        printed = all_ended(running)
        assert "ngram+budgeted" in printed[0]
        assert "tau: " in printed[0]
        for other in printed[1:]:
            assert [line for line in other.splitlines() if "Gloo" not in line] == []
    return found


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("several", [2, 4])
def test_bench(several: int, outputs: dict[int, Path]):
    def answers(out: Path) -> list[tuple]:
        kept = ("tokens", "rounds", "trees")
        turns = lambda line: [[turn[name] for name in kept] for turn in line["turns"]]
        lines = lines_of(out / "bench.json.jsonl")
        return [(line["question"], line["method"], turns(line)) for line in lines if "question" in line]

    ours, theirs = answers(outputs[several]), answers(outputs[1])
    assert len(ours) == 3 * 2
    assert ours == theirs
    rounds = lambda named: [len(found) for _, method, turns in ours if method == named for _, found, _ in turns]
    assert max(rounds("plain")) == 7
    assert min(rounds("ngram+budgeted")) < 7, "no draft was taken"
    assert (outputs[several] / "page.html").exists()


@pytest.mark.parametrize("several", [2, 4])
def test_eval_budgets_and_generate(several: int, outputs: dict[int, Path]):
    assert len(lines_of(outputs[1] / "eval.jsonl")) == len(lines_of(outputs[1] / "texts.jsonl")) == 3
    assert [len(tokens) for tokens, _ in json.loads((outputs[1] / "budgets.json").read_text())] == [3, 11, 9, 5]
    for name in ("eval.jsonl", "budgets.json", "texts.jsonl"):
        assert (outputs[several] / name).read_bytes() == (outputs[1] / name).read_bytes(), name


def test_calibrator_and_skip_search(tmp_path: Path):
    target, text = checkpoint(tmp_path / "ckpt", num_layers=2), python_file(tmp_path)
    head = early_exit_head(load(target, "float32").target)
    (folder := target / "heads/early-exit").mkdir(parents=True)
    write_head(folder, HeadConfig("early-exit", head.config, "float32", "float32", {"first": 1}), head)
    about = ("--target", target, "--data", text, "--samples", 4, "--prompt-tokens", 8, "--mesh", MESH)
    labels = {}
    for processes in (2, 1):
        out = tmp_path / f"of-{processes}"
        fitted = ("--head", "early-exit", "--length", 3, "--max-new-tokens", 24, "--steps", 50, "--out", out)
        commands: list[Command] = [("jaxspec-train", "calibrator", *about, *fitted, "--batch-size", 2)]
        if processes > 1:  # what a search finds depends on what it has timed
            searched = ("--trials", 3, "--max-new-tokens", 6, "--out", tmp_path / "set")
            commands.append(("jaxspec-train", "skip-search", *about, *searched))
        all_ended(start(commands, processes, devices=4 // processes, DELAY="0.5"))
        shapes = read_shapes(out / "params")
        found = [dict(np.load(file)) for file in sorted((tmp_path / f"of-{processes}.run/labels").glob("*.npz"))]
        labels[processes] = (found, read_arrays(out / "params", shapes.keys()))
    jax.tree.map(np.testing.assert_array_equal, *labels.values())
    assert (tmp_path / "set/config.json").exists()
    assert len(lines_of(tmp_path / "set.run/trials.jsonl")) == 1 + 1 + 3, "settings, costs, trials"
