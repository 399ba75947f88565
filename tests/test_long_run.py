"""benchmarks/long_run.py: it notices what grows, and a small model passes."""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate import tiny

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("long_run")


def test_what_grows_is_a_fault(script: Any):
    sizes = [script.Size(calls=100 * i, resident=900.0 + 0.5 * i, compiled=7, open=9) for i in range(2, 12)]
    assert script.growth(sizes) == pytest.approx(5.0)
    assert script.faults(sizes) == []
    grown = [dataclasses.replace(size, resident=900.0 + 0.02 * size.calls) for size in sizes]
    assert script.faults(grown) == ["memory grows by 20.0 MB per thousand calls"]
    worse = [*sizes[:-1], dataclasses.replace(sizes[-1], compiled=8, open=11)]
    assert script.faults(worse) == ["1 programs were compiled", "2 files or threads are left open"]


def test_an_early_rise_is_not_growth(script: Any):
    sizes = [script.Size(calls=100 * i, resident=900.0 if i > 3 else 500.0, compiled=7, open=9) for i in range(12)]
    assert script.faults(sizes) == []


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_minute_of_mixed_calls(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    target = tiny.checkpoint(tmp_path / "ckpt")
    monkeypatch.setattr(sys, "argv", ["long_run.py", "--target", str(target), "--minutes", "1", "--methods", "ngram"])
    script.main()
    assert "MB per thousand calls" in capsys.readouterr().out
