"""What `bench` is asked for: methods and conditions, and what it refuses before anything runs."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from jaxspec.commands.bench import run
from jaxspec.evaluate import bench
from jaxspec.methods.method import Method
from jaxspec.options.by_command import Bench
from tests.evaluate.finished_bench import Finished, Killed, changed

pytestmark = pytest.mark.usefixtures("quick_runs")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": ()}, "name at least one method"),
        ({"methods": ("nonsense",)}, "there is no drafter 'nonsense'"),
        ({"methods": ("draft-model",)}, "no head 'draft-model'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"max_new_tokens": 1}, "--max-new-tokens must be at least 2: the first token is prefill's"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"shots": 2}, "2 shots need as many questions with a worked answer"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must be 0 or above"),
        ({"max_new_tokens": 120}, r"question 0 \(81\) needs up to \d+ positions .* and the model has 256"),
        ({"json": Path("/nowhere/out.json")}, "there is no folder /nowhere"),
        ({"json": Path("out.jsonl")}, r"--json names a file of JSON, such as out\.json"),
        ({"json": Path("out.json"), "report": Path("/nowhere/r.html")}, "there is no folder /nowhere"),
        ({"temperatures": (0.0, -1.0)}, "temperature must be 0 or above, not -1"),
        ({"batch_sizes": (1, 0)}, "batch_size must be at least 1, not 0"),
        ({"simulate": "acceptance=1", "temperatures": (0.0, 1.0)}, "temperature has no meaning"),
        ({"temperatures": (0.0, 1.0), "temperature": 0.5}, "--temperature has no effect with --temperatures: leave"),
        ({"batch_sizes": (1, 2), "batch_size": 4}, "--batch-size has no effect with --batch-sizes: leave"),
        ({"simulate": "acceptance=1", "report": Path("r.html")}, "--report needs --json"),
        ({"prompts": Path("/nowhere.jsonl")}, "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(changes: dict, says: str, finished: Finished, monkeypatch):
    monkeypatch.setattr(bench.runner, "run_batch", None)
    with pytest.raises(ValueError, match=says):
        run(changed(finished.command, **{"json": None, **changes}))


def test_methods_named_beside_all_run_too(finished: Finished, monkeypatch, capsys: pytest.CaptureFixture):
    """And a folder that is no head of ours is left out, with a word about it."""
    folder = finished.command.target / "heads" / "theirs"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")

    def build(settings: Bench, methods: dict[str, Method], mesh: None, shape: None):
        raise Killed(*methods)

    monkeypatch.setattr(bench, "build", build)
    command = dataclasses.replace(finished.command, methods=("all", "ngram+chain,length=7"), json=None)
    with pytest.raises(Killed) as built:
        run(command)
    shutil.rmtree(folder.parent)
    assert built.value.args[-1] == "ngram+chain,length=7" and "ngram+chain,length=5" in built.value.args
    said = " ".join(capsys.readouterr().err.split())
    assert "all leaves out the head theirs: " in said and "is not the config of a trained head" in said


def test_conditions_are_runs_of_their_own(finished: Finished):
    several = dataclasses.replace(finished.command, temperatures=(0.0, 0.8), batch_sizes=(1, 4))
    each = bench.conditions(several)
    assert [(one.sampling.temperature, one.batch_size) for one in each] == [(0.0, 1), (0.0, 4), (0.8, 1), (0.8, 4)]
    assert [one.json and one.json.name for one in each] == [
        *("out.json", "out.t0.b4.json", "out.t0.8.b1.json", "out.t0.8.b4.json"),
    ]
    assert bench.conditions(finished.command) == [finished.command]
    with pytest.raises(ValueError, match=r"--report needs --json OUT\.json"):
        run(dataclasses.replace(finished.command, json=None, report=Path("x.html")))
    with pytest.raises(ValueError, match="is read by this command"):
        run(dataclasses.replace(finished.command, json=Path("x.json"), report=Path("x.json")))
    more = {"json": Path("x.json"), "simulate": "0.5", "target": Path("config.json"), "report": Path("config.json")}
    with pytest.raises(ValueError, match="is read by this command"):
        run(dataclasses.replace(finished.command, **more))
