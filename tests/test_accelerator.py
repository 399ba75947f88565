"""benchmarks/accelerator.py in its quick mode: every part runs and fits the next; the numbers mean nothing."""

import importlib
import json
import tempfile
from pathlib import Path

import pytest

from jaxspec.costs import timing

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.001)
    script = importlib.import_module("accelerator")
    script.main(["--quick", "--minutes", "60", "--out", str(tmp_path / "out.json")])  # however busy the machine is
    found = json.loads((tmp_path / "out.json").read_text())
    assert {"device", "versions", "bandwidth", "shapes", "trained", "transformers"} <= found.keys()
    assert not any("left_out" in found[name] for name in ("bandwidth", "shapes", "trained", "transformers"))

    shapes = found["shapes"]
    assert shapes["share_of_bandwidth"] > 0
    per_second = shapes["methods"]["plain"]["tokens_per_second"]
    a_token = 1e9 * shapes["plain_gigabytes_per_second"] / per_second
    assert 0 < a_token < shapes["read_bytes"]  # all of the weights, and no cache
    assert shapes["plain_share_of_bandwidth"] * found["bandwidth"]["gigabytes_per_second"] == pytest.approx(
        shapes["plain_gigabytes_per_second"]
    )
    assert list(shapes["verification_seconds"]) == ["8"]
    plain, chain = (values["tau"] for values in shapes["methods"].values())
    assert plain == 1 < chain
    methods = found["trained"]["methods"]
    assert all(values["tau"] >= 1 and values["unexplained_divergences"] == 0 for values in methods.values())
    assert found["transformers"]["times_as_fast"].keys() == methods.keys()

    script.main(["--quick", "--minutes", "-1", "--out", str(tmp_path / "none.json")])
    assert "left_out" in json.loads((tmp_path / "none.json").read_text())["trained"]


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")

    def full(*arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED:\nout of memory")

    monkeypatch.setattr(script, "shapes", full)
    monkeypatch.setattr(script, "trained", full)
    with pytest.raises(SystemExit, match="failed: shapes, trained"):
        script.main(["--quick", "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bandwidth"]["gigabytes_per_second"] > 0
    assert found["shapes"] == found["trained"] == {"failed": "RuntimeError: RESOURCE_EXHAUSTED: out of memory"}
    assert "left_out" in found["transformers"]


def test_quick_results_are_no_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")
    assert script.parse(["--quick"]).out.parent == Path(tempfile.gettempdir())
    assert script.parse([]).out.parent == BENCHMARKS / "results"
