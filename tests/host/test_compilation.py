"""Programs are compiled concurrently, slow compilations are reported, and programs in memory are freed in time."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxspec.host import compilation
from jaxspec.host.compilation import Compilations


def test_two_at_a_time_and_each_result_in_its_place(capsys: pytest.CaptureFixture):
    both = threading.Barrier(2, timeout=20)  # broken where one waits for the other to end

    def program(value: int) -> int:
        both.wait()
        return value

    assert Compilations({"a": lambda: program(1), "b": lambda: program(2)}).wait() == {"a": 1, "b": 2}
    assert Compilations({}).wait() == {}
    assert capsys.readouterr().err == ""  # nobody waits for a second


def test_what_lasts_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(compilation, "PATIENCE", 0.01)
    Compilations({1: lambda: time.sleep(0.1), 2: lambda: None}, lambda which: f"the loop of method {which}").wait()
    assert capsys.readouterr().err.splitlines()[0].endswith("of 2: the loop of method 1")


def test_a_program_that_took_long_before_is_shown_with_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(compilation, "PATIENCE", 0.01)
    for _ in range(2):
        Compilations({"the loop": lambda: time.sleep(0.1)}, key=repr).wait()
    first, second = (line for line in capsys.readouterr().err.splitlines() if "0 of 1" in line)
    assert first.endswith("the loop") and second.endswith("the loop (took up to 0 s before)")


def test_a_message_before_the_text_does_not_delay_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """The second of patience begins with the compilations."""
    ends, waits = threading.Event(), list[float]()
    compiling = Compilations({"loop": ends.wait})
    monkeypatch.setattr(compilation, "PATIENCE", 0.0)
    monkeypatch.setattr(compilation, "wait", lambda running, seconds: (waits.append(seconds) or set(), running))
    compiling.announce()
    ends.set()
    assert waits == [0.0]
    assert capsys.readouterr().err == "compiling the loop\n"


def test_one_that_fails_is_heard_of():
    def fails():
        raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        Compilations({"a": fails, "b": lambda: None}).wait()


SLOW = """
import signal
import time
from jaxspec.commands import console
from jaxspec.host.compilation import Compilations

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack

def compile_slowly():
    print("begun", flush=True)
    time.sleep(100)

console.run(lambda: Compilations({"a": compile_slowly}).wait())
"""


@pytest.mark.parametrize(
    ("by", "code", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_command_that_is_stopped_waits_for_no_compiler(by: signal.Signals, code: int, message: str):
    command = [sys.executable, "-c", SLOW]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "begun\n"
        running.send_signal(by)
        _, err = running.communicate(timeout=60)
    assert running.returncode == code
    assert err.splitlines()[-1] == message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit, or none that can be read")
def test_programs_are_let_go_of_where_they_take_too_much_and_only_there():
    double: Any = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    compilation.make_room(1.0)
    assert double._cache_size() == 1
    compilation.make_room(0.0)
    assert double._cache_size() == 0
    assert double(jnp.ones(3)).tolist() == [2, 2, 2]


def test_maps_are_counted_only_after_something_was_compiled(monkeypatch: pytest.MonkeyPatch):
    counts = []
    monkeypatch.setattr(compilation, "make_room", lambda: counts.append(1))
    compilation.make_room_for_more()
    counts.clear()
    compilation.make_room_for_more()
    assert counts == []
    double: Any = jax.jit(lambda x: 2 * x)
    double(jnp.ones(3))
    compilation.make_room_for_more()
    compilation.make_room_for_more()
    assert counts == [1]
