"""benchmarks/accelerator.py in its quick mode: every part runs and fits the next; the numbers mean nothing."""

import importlib
import json
from pathlib import Path

import pytest

from jaxspec.evaluate import cost

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(cost, "LEAST_SECONDS", 0.001)
    script = importlib.import_module("accelerator")
    script.main(["--quick", "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert {"device", "versions", "bandwidth", "shapes", "trained", "transformers"} <= found.keys()
    assert not any("left_out" in found[name] for name in ("bandwidth", "shapes", "trained", "transformers"))

    shapes = found["shapes"]
    assert shapes["share_of_bandwidth"] > 0
    assert list(shapes["verification_seconds"]) == ["8"]
    plain, chain = (values["tau"] for values in shapes["methods"].values())
    assert plain == 1 < chain
    methods = found["trained"]["methods"]
    assert all(values["tau"] >= 1 and values["unexplained_divergences"] == 0 for values in methods.values())
    assert found["transformers"]["times_as_fast"].keys() == methods.keys()

    script.main(["--quick", "--minutes", "-1", "--out", str(tmp_path / "none.json")])
    assert "left_out" in json.loads((tmp_path / "none.json").read_text())["trained"]
