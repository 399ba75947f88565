"""Runs `jaxspec-convert` inside the test's process."""

import contextlib
import io
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxspec.commands import convert


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
