"""The command under test, in this process."""

import contextlib
import io
import sys

import pytest

from jaxspec.commands import train

QUICK = ("--steps", 30, "--batch-size", 4, "--context", 48, "--learning-rate", 1e-2, "--evaluate-every", 15)
"""Options that train a head in seconds."""


def command(*arguments: object) -> tuple[int, str]:
    """Exit code and stderr of `jaxspec-train ARGUMENTS`."""
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["jaxspec-train", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            train.main()
    return int(exit_.value.code or 0), err.getvalue()
