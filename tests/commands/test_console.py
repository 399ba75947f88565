"""Every exception becomes one sentence and an exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxspec.commands import console
from jaxspec.host import buckets
from tests.programs import run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (ValueError("a\nlong   story"), 2, "error: a long story"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 2, "error: x.json: No such file or directory"),
        (PermissionError(13, "Permission denied", "/root"), 1, "error: /root: Permission denied"),
        (KeyError("lost"), 1, "error: KeyError: 'lost' (set JAXSPEC_TRACEBACK=1 to see where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("static arguments should be comparable: Traceback ...\nKeyboardInterrupt"), 130, "interrupted"),
    ],
)
def test_codes(error: BaseException, code: int, last: str, capsys: pytest.CaptureFixture[str]):
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as exit_:
        console.run(command)
    assert exit_.value.code == code
    assert capsys.readouterr().err == last + "\n"


def test_a_termination_that_jax_wraps(capsys: pytest.CaptureFixture[str]):
    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit as end:
            raise ValueError(f"static arguments should be comparable: Traceback ...\nSystemExit: {end.code}") from None

    with pytest.raises(SystemExit) as exit_:
        console.run(command)
    assert exit_.value.code == 143
    assert capsys.readouterr().err == "terminated\n"


def test_success_and_own_exits_pass_through():
    with pytest.raises(SystemExit) as exit_:
        console.run(lambda: None)
    assert exit_.value.code == 0
    with pytest.raises(SystemExit) as exit_:
        console.run(lambda: console.fail("enough", 2))
    assert exit_.value.code == 2


def test_an_upload_that_fails_at_the_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def lost() -> None:
        raise OSError(5, "the bucket does not answer", "gs://bucket/log")

    monkeypatch.setattr(buckets, "flush", lost)
    monkeypatch.setattr(console.os, "dup2", lambda *_: None)
    with pytest.raises(SystemExit) as exit_:
        console.run(lambda: None)
    assert exit_.value.code == 1
    assert capsys.readouterr().err == "error: gs://bucket/log: the bucket does not answer\n"


@pytest.mark.parametrize("then", ["", "; raise SystemExit(0)", "; raise SystemExit(1)"])
@pytest.mark.parametrize("full", [True, False])
def test_output_that_cannot_be_written(full: bool, then: str):
    """A full disk is an error, a reader that has ended is not named."""
    code = f"import sys\nfrom jaxspec.commands import console\ndef do(): print('x'){then}\nconsole.run(do)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe, Path("/dev/full").open("wb") as disk:
        out = disk if full else pipe
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=out, stderr=subprocess.PIPE)
    assert done.stderr == (b"error: stdout: No space left on device\n" if full else b"")
    assert done.returncode == 1


def test_traceback_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAXSPEC_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        console.run(lambda: int("x"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("error: invalid literal")


def test_termination_unwinds_and_the_handler_is_put_back(capsys: pytest.CaptureFixture[str]):
    before, unwound = signal.getsignal(signal.SIGTERM), []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            unwound.append(True)

    with pytest.raises(SystemExit) as exit_:
        console.run(command)
    assert exit_.value.code == 143
    assert unwound
    assert capsys.readouterr().err == "terminated\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            "generate --target builtin --promt a",
            "error: Unrecognized options: --promt, a; perhaps you meant --prompt; see jaxspec generate --help",
        ),
        (
            "bench --targt builtin",
            "error: Missing from jaxspec bench: --target, --prompts, --methods; unrecognized options: --targt builtin; "
            "see jaxspec bench --help",
        ),
        (
            "plan --model a --method plain --batch-size 1,2",
            "error: --batch-size must be a whole number, not '1,2'; see jaxspec plan --help",
        ),
        ("verify --target a --minutes x", "error: --minutes must be a number, not 'x'; see jaxspec verify --help"),
        (
            "bench --target a --prompts a --methods a --temperatures x",
            "error: --temperatures cannot be 'x'; see jaxspec bench --help",
        ),
        ("verify --seed", "error: --seed needs a value; see jaxspec verify --help"),
        (
            "bench --dtype int4",
            "error: --dtype must be one of bfloat16, float16, float32, not 'int4'; see jaxspec bench --help",
        ),
        ("generate --target builtin --zzzz", "error: Unrecognized options: --zzzz; see jaxspec generate --help"),
        (
            "bench --target builtin --prompts builtin --methods plain --out x",
            "error: Unrecognized options: --out, x; see jaxspec bench --help",
        ),
        ("genrate --target builtin", "error: unknown command genrate; perhaps you meant generate; see jaxspec --help"),
    ],
)
def test_wrong_options(arguments: str, says: str) -> None:
    found = run("jaxspec", *arguments.split())
    assert (found.code, found.err.splitlines()) == (2, [says])
