"""Fixtures of tests of heads: their target."""

import shutil
from pathlib import Path

import pytest

from jaxspec.convert import llama
from tests import hf_models
from tests.convert.published_heads import LAYERS

THETA = 5e5
"""Base of the target's rope, which is not that of heads whose config names none."""


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a target: `hf` as Hugging Face has it, `ckpt` converted."""
    path = tmp_path_factory.mktemp("target")
    rope = {"rope_type": "default", "rope_theta": THETA}
    hf_models.make("llama", path / "hf", num_hidden_layers=LAYERS, rope_parameters=rope)
    llama.convert(path / "hf", path / "ckpt")
    return path


@pytest.fixture
def folder(target: Path, tmp_path: Path) -> Path:
    """A copy of the target to put heads under."""
    return shutil.copytree(target, tmp_path, dirs_exist_ok=True)
