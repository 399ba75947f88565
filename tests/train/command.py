"""The command under test, in this process."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import jaxspec
from jaxspec.builders import Chain
from jaxspec.commands import train
from jaxspec.engine.generation import Generation
from jaxspec.methods.method import Method
from jaxspec.train.run.trainer import CHAIN

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


def trained(
    name: str, target: Path, *options: object, head: str | None = None, method: str | None = None
) -> tuple[jaxspec.Engine, list[dict[str, Any]]]:
    """Trains a head: the held-out loss falls, and the head drafts without changing a text.

    Returns:
        an engine with the head, and the lines of the run's metrics.
    """
    head = head or name
    code, err = command(name, "--target", target, *QUICK, *options)
    assert code == 0, err
    assert err.splitlines()[-1].startswith(f"wrote {target}/heads/{head}: ")
    lines = [json.loads(line) for line in (target / f"heads/{head}.run/metrics.jsonl").read_text().splitlines()]
    first, last = (line["evaluation"] for line in lines if "evaluation" in line)
    assert last["loss"] < first["loss"]
    model = jaxspec.load(target)
    drafts(engine := jaxspec.Engine(model, method))
    return engine, lines


def drafts(engine: jaxspec.Engine) -> list[Generation]:
    """Texts that its head drafts, and does not change; in chains as training measures, so that they are compiled."""
    method = Method(engine.method.drafter, Chain(length=CHAIN))
    engines = jaxspec.Engine(engine.model, method, draft=engine.models.draft), jaxspec.Engine(engine.model, "plain")
    drafted, plain = (one.generate(["def f", "return", "x + 1", "f2(x)"], max_new_tokens=30) for one in engines)
    assert [each.tokens for each in drafted] == [each.tokens for each in plain]
    return drafted
