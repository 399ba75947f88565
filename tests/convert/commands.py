"""Runs `jaxspec-convert` inside the test's process, on models and on heads beside a target (`folder` of conftest)."""

import contextlib
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from jaxspec.checkpoint import heads
from tests import programs

HEAD = Path("ckpt", "heads", "head")
"""Where the head of a test is, under its folder."""


run = functools.partial(programs.run, "jaxspec-convert")


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
