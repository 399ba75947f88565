"""The model of most tests of the engine."""

import pytest

from jaxspec import load
from jaxspec.checkpoint.loading import Checkpoint
from tests import checkpoints


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A random target of one layer with a draft model; no test changes it or its files."""
    return load(checkpoints.make(tmp_path_factory.mktemp("engine"), layers=1))
