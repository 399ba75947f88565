"""Two processes with two devices each give what one process with four gives: tokens, rounds, files, and one voice."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.tiny import checkpoint
from tests.host.running import all_ended, start

MESH = "data=2,model=2"
SAMPLING = ("--temperature", 1, "--top-k", 2, "--max-new-tokens", 8)  # two likeliest tokens: text that repeats itself


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By number of processes, the folder of what the same commands wrote."""
    folder = tmp_path_factory.mktemp("same")
    target = checkpoint(folder / "ckpt")
    turns = [[f"def f{'x' * (5 * i)}(", "and now"][: 1 + i // 2] for i in range(3)]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns))
    found = {}
    for processes in (2, 1):  # which finds the costs that the two have measured
        found[processes] = out = folder / f"of-{processes}"
        out.mkdir()
        about = ("--target", target, "--prompts", questions, "--batch-size", 2, "--mesh", MESH, *SAMPLING)
        methods = ("--methods", "ngram+budgeted", "--repeats", 1, "--no-prices")
        running = start(
            [
                ("jaxspec", "bench", *about, *methods, "--json", out / "bench.json", "--report", out / "page.html"),
                ("jaxspec", "eval", *about, "--method", "ngram+chain", "--out", out / "eval.jsonl", "--stop", "fz"),
                ("budgets", target, MESH, out / "budgets.json"),
            ],
            processes,
            devices=4 // processes,
            JAXSPEC_CACHE=str(folder / "cache"),
            DELAY="0.5",
        )
        printed = all_ended(running)
        assert "ngram+budgeted" in printed[0]
        assert "tau: " in printed[0]
        for said in printed[1:]:
            assert [line for line in said.splitlines() if "Gloo" not in line] == []
    return found


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_bench(outputs: dict[int, Path]):
    def answers(out: Path) -> list[tuple]:
        kept = ("tokens", "rounds", "trees")
        turns = lambda line: [[turn[name] for name in kept] for turn in line["turns"]]
        lines = lines_of(out / "bench.json.jsonl")
        return [(line["question"], line["method"], turns(line)) for line in lines if "question" in line]

    ours, theirs = answers(outputs[2]), answers(outputs[1])
    assert len(ours) == 3 * 2
    assert ours == theirs
    rounds = lambda named: [len(found) for _, method, turns in ours if method == named for _, found, _ in turns]
    assert max(rounds("plain")) == 7
    assert min(rounds("ngram+budgeted")) < 7, "no draft was taken"
    assert (outputs[2] / "page.html").exists()


def test_eval(outputs: dict[int, Path]):
    ours, theirs = (lines_of(outputs[processes] / "eval.jsonl") for processes in (2, 1))
    assert len(ours) == 3
    assert ours == theirs


def test_budgets(outputs: dict[int, Path]):
    ours, theirs = (json.loads((outputs[processes] / "budgets.json").read_text()) for processes in (2, 1))
    assert [len(tokens) for tokens, _ in ours] == [3, 11, 9, 5]
    assert ours == theirs
