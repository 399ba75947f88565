"""Runs the programs in the test's own process."""

import contextlib
import io
import sys
from typing import NamedTuple

import pytest

from jaxspec.commands import convert, main, train

PROGRAMS = {"jaxspec": main.main, "jaxspec-convert": convert.main, "jaxspec-train": train.main}


class Result(NamedTuple):
    """Exit code and output of a command; `last` is the last line of stderr."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.splitlines()[-1]


def run(program: str, *arguments: object) -> Result:
    """Runs one of PROGRAMS with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", [program, *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            PROGRAMS[program]()
    return Result(int(exit_.value.code or 0), out.getvalue(), err.getvalue())
