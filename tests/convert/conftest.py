"""Fixtures of tests of heads: their target."""

import shutil
from pathlib import Path

import pytest

from jaxspec.convert import llama
from tests import hf_models


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a target: `hf` as Hugging Face has it, `ckpt` converted."""
    path = tmp_path_factory.mktemp("target")
    hf_models.make("llama", path / "hf", num_hidden_layers=1)
    llama.convert(path / "hf", path / "ckpt")
    return path


@pytest.fixture
def folder(target: Path, tmp_path: Path) -> Path:
    """A copy of the target to put heads under."""
    return shutil.copytree(target, tmp_path, dirs_exist_ok=True)
