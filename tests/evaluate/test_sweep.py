"""`jaxspec sweep` from the command to the JSON and the figure, killed runs included."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from jaxspec.decoding.request import SamplingParams
from jaxspec.evaluate import bench, sweep
from jaxspec.options.by_command import Sweep
from tests.evaluate import tiny

pytestmark = pytest.mark.usefixtures("quick_runs")

POINTS = [f"ngram,longest={n},shortest=1,sharpness=4.0+chain,length=2+fixed" for n in (1, 2)]
AGAINST = "ngram,longest=2+chain,length=2"  # as a point, so that it is compiled


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    command = Sweep(
        target=tiny.checkpoint(folder / "ckpt"),
        prompts=tiny.prompts(folder / "questions.jsonl", [{"prompt": f"{word} after {word}"} for word in "ab"]),
        method="ngram+chain,length=2",
        over="longest=1,2",
        against=(AGAINST,),
        sampling=SamplingParams(max_new_tokens=8),
        repeats=1,
        out=folder / "out.json",
    )
    sweep.run(command)
    return command


@pytest.fixture
def out(command: Sweep) -> Path:
    assert command.out is not None
    return command.out


def test_the_file_is_benchs_and_says_what_was_swept(out: Path):
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["methods"]) == ["plain", *POINTS, AGAINST]
    assert {"device", "settings", "noise", "target_seconds"} < found.keys()
    best = max(POINTS, key=lambda name: found["methods"][name]["modelled_speedup"])
    assert found["sweep"] == {
        "setting": "longest",
        "values": [1, 2],
        "methods": POINTS,
        "against": [AGAINST],
        "best": 1 + POINTS.index(best),
    }
    assert out.with_suffix(".svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")


def test_a_figure_of_others_stays(command: Sweep, tmp_path: Path):
    (tmp_path / "mine.svg").write_text("mine")
    with pytest.raises(ValueError, match=r"mine.svg exists already"):
        sweep.run(dataclasses.replace(command, out=tmp_path / "mine.json"))


def test_a_killed_sweep_resumes(
    command: Sweep, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Complete in its log: nothing is decoded again, and the results are the same to the last byte."""
    written = {path: path.read_bytes() for path in (out, out.with_suffix(".svg"))}
    for path in written:
        path.unlink()
    monkeypatch.setattr(bench.runner, "run_batch", None)
    monkeypatch.setattr(bench, "measure", None)
    sweep.run(command)
    assert {path: path.read_bytes() for path in written} == written
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"Best by modelled speedup: longest=[12], [\d.]+x plain; against it ngram,longest=2\+chain,length=2", printed
    )


def test_a_figure_that_fails_leaves_no_file(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found, out = json.loads(out.read_text(encoding="utf-8")), tmp_path / "out.json"
    monkeypatch.setattr(sweep, "draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep.write(out, found)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sweep, "draw", lambda *_: None)  # matplotlib is not installed
    sweep.write(out, found)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"over": "longest"}, "--over must be SETTING=VALUE"),
        ({"over": "longest=1"}, "two or more values of longest"),
        ({"over": "width=1,2"}, "no setting 'width'; its settings are ngram.longest"),
        ({"over": "longest=0,1"}, "1 <= shortest <= longest"),
        ({"method": "draft-model", "over": "head=a,b"}, "no head 'a'"),
        ({"against": ("nonsense",)}, "there is no drafter 'nonsense'"),
        ({"out": Path("out.svg")}, "--out must name a .json file"),
        ({"out": Path("/nowhere/out.json")}, "there is no folder /nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(command: Sweep, changes: dict, says: str, monkeypatch):
    monkeypatch.setattr(bench.runner, "run_batch", None)
    with pytest.raises(ValueError, match=says):
        sweep.run(dataclasses.replace(command, **{"out": None, **changes}))


def test_the_best_value_and_the_distance_of_others():
    methods = {name: {"modelled_speedup": speedup} for name, speedup in (("a", 1.5), ("b", 2.0), ("c", 1.0))}
    swept = {"setting": "length", "values": [3, 5], "methods": ["a", "b"], "against": ["c", "a"], "best": 5}
    assert sweep.conclude(swept, methods) == (
        "Best by modelled speedup: length=5, 2.00x plain; against it c has 1.00x, -50.0 %, a has 1.50x, -25.0 %."
    )
    assert sweep.conclude({**swept, "against": []}, methods) == "Best by modelled speedup: length=5, 2.00x plain."


def test_numbers_stand_at_their_place_and_names_side_by_side():
    assert sweep.axis([1, 2, 8]) == ([1, 2, 8], ["1", "2", "8"])
    assert sweep.axis([0.5, 0.25]) == ([0.5, 0.25], ["0.5", "0.25"])
    assert sweep.axis(["eagle", "runs/a/eagle", "n4"]) == ([0, 1, 2], ["eagle", "eagle", "n4"])
    assert sweep.axis([True, False]) == ([0, 1], ["True", "False"])


def test_every_method_is_in_the_figure():
    row = {"modelled_speedup": 1.2, "speedup": 1.1, "tau": 2.0, "harmonic_mean": 0.5}
    swept = {"setting": "head", "values": ["n2", "n4"], "methods": ["a", "b"], "against": ["c"], "best": "n2"}
    figure = sweep.draw(swept, dict.fromkeys("abc", row))
    assert figure is not None
    for text in ("n2", "n4", "head", "modelled", "measured", "c, modelled", "tau", "harmonic mean"):
        assert f"<!-- {text} -->" in figure
