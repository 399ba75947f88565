"""A target whose probabilities are far from equal, with a draft model that often agrees; and the command on it."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict, write_params
from jaxspec.verify import cases, exact, run, workloads
from tests import checkpoints, programs

SHARPER = 20.0
Command = Callable[..., programs.Result]


@pytest.fixture(scope="package")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ckpt = checkpoints.make(tmp_path_factory.mktemp("verify"), layers=1)
    draft = ckpt / "heads" / "draft-model"
    params, draw = module_to_dict(load(ckpt, "float32").target), np.random.default_rng(0)
    shutil.rmtree(draft)
    shutil.rmtree(ckpt / "params")
    shutil.copytree(ckpt, draft, ignore=shutil.ignore_patterns("heads"))
    sharper = {name: np.asarray(array) for name, array in params.items()}
    sharper["norm"] = SHARPER * sharper["norm"]
    write_params(ckpt / "params", sharper.items())
    shaken = {name: array + 0.2 * array.std() * draw.normal(size=array.shape) for name, array in sharper.items()}
    write_params(draft / "params", [(name, array.astype(np.float32)) for name, array in shaken.items()])
    return ckpt


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, quick_runs: None) -> None:
    """Few prompts per case, and all cases of one shape, so that they share programs."""
    for prompts in ("FIRST_PROMPTS", "LATER_PROMPTS"):
        monkeypatch.setattr(workloads, prompts, {"greedy": 6, "sampled": 6, "distribution": 60})
    for module in (workloads, cases):
        monkeypatch.setattr(module, "LARGEST_BATCH", 4)
    alike = {"LONGEST": (16,), "BUDGETS": (32,), "PLACED": 32, "FILLED": 0, "TRUNCATED": 1, "SAME_SHAPE": 10**9}
    for name, value in alike.items():
        monkeypatch.setattr(workloads, name, value)
    monkeypatch.setattr(exact, "NOISE_SIZES", (4,))
    monkeypatch.setattr(exact, "NOISE_TEXTS", 4)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, path: Path) -> Command:
    """Runs `jaxspec verify` in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    return functools.partial(programs.run, "jaxspec", "verify", "--target", path)


@pytest.fixture
def noise_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is not measured."""
    monkeypatch.setattr(run, "measure_noise", lambda *_: 1e-4)


@pytest.fixture
def forgetful() -> Any:
    """Programs are compiled anew, and again after the test: what a test breaks is in no program of another."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def verdict(out: Path) -> dict[str, Any]:
    """The verdict that was written."""
    return json.loads(out.read_text())
