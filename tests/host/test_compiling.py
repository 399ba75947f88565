"""Programs are compiled concurrently, and slow compilations are reported."""

import threading
import time

import pytest

from jaxspec.host import compiling
from jaxspec.host.compiling import compile_all


def test_two_at_a_time_and_each_result_in_its_place(capsys: pytest.CaptureFixture):
    both = threading.Barrier(2, timeout=20)  # broken where one waits for the other to end

    def program(value: int) -> int:
        both.wait()
        return value

    assert compile_all({"a": lambda: program(1), "b": lambda: program(2)}) == {"a": 1, "b": 2}
    assert compile_all({}) == {}
    assert capsys.readouterr().err == ""  # nobody waits for a second


def test_what_lasts_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(compiling, "PATIENCE", 0.01)
    compile_all({1: lambda: time.sleep(0.1), 2: lambda: None}, lambda which: f"the loop of method {which}")
    assert capsys.readouterr().err.splitlines()[0].endswith("of 2: the loop of method 1")


def test_one_that_fails_is_heard_of():
    def fails():
        raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        compile_all({"a": fails, "b": lambda: None})
