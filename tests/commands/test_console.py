"""Every exception becomes one sentence and an exit code."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxspec.commands import console, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (ValueError("a\nlong   story"), 2, "error: a long story"),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 2, "error: x.json: No such file or directory"),
        (PermissionError(13, "Permission denied", "/root"), 1, "error: /root: Permission denied"),
        (KeyError("lost"), 1, "error: KeyError: 'lost' (set JAXSPEC_TRACEBACK=1 to see where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_codes(error: BaseException, code: int, last: str, capsys: pytest.CaptureFixture[str]):
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as exit_:
        console.run(command)
    assert exit_.value.code == code
    assert capsys.readouterr().err == last + "\n"


def test_success_and_own_exits_pass_through():
    with pytest.raises(SystemExit) as exit_:
        console.run(lambda: None)
    assert exit_.value.code == 0
    with pytest.raises(SystemExit) as exit_:
        console.run(lambda: console.fail("enough", 2))
    assert exit_.value.code == 2


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
        ("generate --target builtin --zzzz", "error: Unrecognized options: --zzzz; see jaxspec generate --help"),
        (
            "bench --target builtin --prompts builtin --methods plain --out x",
            "error: Unrecognized options: --out x; see jaxspec bench --help",
        ),
        ("genrate --target builtin", "error: unknown command genrate; perhaps you meant generate; see jaxspec --help"),
    ],
)
def test_wrong_options(
    arguments: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["jaxspec", *arguments.split()])
    with pytest.raises(SystemExit) as exited:
        main.main()
    assert exited.value.code == 2
    assert capsys.readouterr().err.splitlines() == [says]


@pytest.mark.parametrize("command", ["main plan", "train skip-search", "convert head"])
def test_help_is_flowing_text(command: str):
    """In a process of its own: no line of an option's help ends before it is full, and no default is given twice."""
    module, name = command.split()
    typed = [sys.executable, "-m", f"jaxspec.commands.{module}", name, "--help"]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    text = subprocess.run(typed, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.strip("│\n").rstrip() for line in text.splitlines() if line.startswith("│")]
    indented = lambda line: len(line) - len(line.lstrip())
    following = [(a, b) for a, b in itertools.pairwise(lines) if 8 < indented(a) == indented(b)]
    assert following
    for line, after in following:
        assert len(line) + 1 + len(after.split()[0]) > 76, (line, after)
    assert "default: None" not in text
    assert "{None" not in text


@pytest.mark.parametrize("module", ["main", "train", "convert"])
def test_help_lists_the_commands_in_one_sentence_each(module: str):
    """In a process of its own: examples and details are in a command's own help."""
    typed = [sys.executable, "-m", f"jaxspec.commands.{module}", "--help"]
    text = subprocess.run(typed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "For example" not in text
    assert "COMMAND --help" in text
