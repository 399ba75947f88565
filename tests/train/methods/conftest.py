"""Fixtures of tests of training heads: training text and a target."""

from pathlib import Path

import pytest

from tests.evaluate.tiny import checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for name, count in (("a.py", 60), ("shutil.py", 6)):  # the second is held out by its name: four windows
        (path / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(count)))
    return path


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes."""
    return checkpoint(tmp_path_factory.mktemp("target") / "ckpt")
