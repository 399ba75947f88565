"""Runs `jaxspec-convert` inside the test's process, on models and on heads beside a target (`folder` of conftest)."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxspec.checkpoint import heads
from jaxspec.commands import convert

HEAD = Path("ckpt", "heads", "head")
"""Where the head of a test is, under its folder."""


class Result(NamedTuple):
    """Exit code and output of a command; `last` is the last line of stderr."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.splitlines()[-1]


def run(*args: object) -> Result:
    """Runs the command with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["jaxspec-convert", *map(str, args)])
        with pytest.raises(SystemExit) as exit_:
            convert.main()
    return Result(int(exit_.value.code or 0), out.getvalue(), err.getvalue())


def refused(source: Path, out: Path, *args: object, command: str = "llama") -> str:
    """The sentence with which `COMMAND SOURCE OUT` refuses its input; checks that nothing was written."""
    before = sorted(out.parent.iterdir())
    result = run(command, source, out, *args)
    assert result.code == 2, result.err
    assert sorted(out.parent.iterdir()) == before
    assert "Traceback" not in result.err
    assert not set(result.err) & set("╭│╰")
    return result.last


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a Hugging Face folder's safetensors."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def assert_bitwise(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Same names, shapes, dtypes and bits."""
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert (array.shape, array.dtype) == (right[name].shape, right[name].dtype), name
        assert array.tobytes() == right[name].tobytes(), name


def said(folder: Path, source: Path, *args: object) -> str:
    """What is printed while a published head becomes FOLDER/HEAD, in place of an earlier one."""
    shutil.rmtree(folder / HEAD, ignore_errors=True)
    result = run("head", source, folder / HEAD, "--target", folder / "ckpt", *args)
    assert result.code == 0, result.err
    return result.err


def imported(folder: Path, source: Path, *args: object) -> heads.HeadConfig:
    """The config of a published head that became FOLDER/HEAD."""
    said(folder, source, *args)
    return heads.read_config(folder / HEAD)


def exported(folder: Path, form: str, *args: object) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """Tensors and config of FOLDER/HEAD in a format, as FOLDER/back, and what was printed."""
    result = run("export", folder / HEAD, folder / "back", "--format", form, *args)
    assert result.code == 0, result.err
    return tensors(folder / "back"), json.loads((folder / "back" / "config.json").read_text()), result.err


def refused_head(folder: Path, source: Path, *args: object) -> str:
    """The sentence with which a head is refused, after checking that it left no trace."""
    return refused(source, folder / "out", "--target", folder / "ckpt", *args, command="head")


def refused_export(folder: Path, *args: object) -> str:
    """The sentence with which `export` refuses, after checking that it left no trace. Paths are from the folder on."""
    with contextlib.chdir(folder):
        result = run("export", *args)
    assert result.code == 2, result.err
    assert not (folder / "back").exists()
    return result.last


def inspected(path: Path) -> dict[str, str]:
    """The lines of `inspect` by their keys."""
    result = run("inspect", path)
    assert result.code == 0, result.err
    return dict(line.strip().split(": ", 1) for line in result.out.splitlines())
