"""Options of `jaxspec-train` that cannot be: one sentence, exit code 2, and nothing on disk."""

from pathlib import Path
from typing import Any

import pytest

import jaxspec
from jaxspec.drafters import Eagle
from tests.evaluate import tiny
from tests.train.command import QUICK, command

REFUSED = {
    "medusa": {
        ("--heads", 0): "--heads must be at least 1, not 0",
        ("--decay", 0): "--decay must be above 0 and at most 1, not 0",
        ("--context", 6): "--context must be at least 7 for 5 heads, not 6",
    },
    "eagle3": {
        ("--taps", 9): "--taps must be from 0 to",
        ("--draft-vocab", 0): "draft-vocab",
        ("--context", 8, "--draft-steps", 7): "--context must be at least 9 for --draft-steps 7, not 8",
    },
    "early-exit": {
        ("--first", 2): "--first must be from 1 to 1 for this target, not 2",
        ("--exit-layers", 3): "--exit-layers must be from 0 to 2 for this target, not 3",
        ("--cache-features", "x"): "--cache-features has no use here",
    },
    "dflash": {
        ("--taps", 9): "--taps must be from 0 to",
        ("--mask-token", 256): "--mask-token must be from 0 to 255",
        ("--block", 1): "--block must be at least 2",
        ("--anchors", 0): "--anchors must be at least 1",
        ("--smoothing", 2): "--smoothing must be from 0 to 1",
        ("--smoothing", 0): "--smoothing has an effect only with --weighting d-pace: give both or neither",
        ("--weighting", "d-pace", "--decay-scale", 4): "--decay-scale has an effect only with --weighting decay",
        ("--markov-rank", -1): "--markov-rank must be at least 0",
    },
    "edd": {
        ("--tap", 2): "--tap must be from 0 to 1 for this target, not 2",
        ("--block-min", 6, "--block-max", 5): "not --block-min 6 --block-max 5",
        ("--teacher-temperature", 0): "--teacher-temperature must be above 0, not 0.0",
        ("--goal", "cross-entropy", "--teacher-temperature", 0.5): "only with --goal forward-kl: give both",
    },
    "layer-skip": {
        ("--mlp-share", 1.5): "--mlp-share must be from 0 to 1, not 1.5",
        ("--aggressive", "--set", "x"): "--aggressive selects a set from the trials of a search",
        ("--search", "x"): "--search has an effect only with --aggressive: give both",
        ("--mlp-share", 0.5): "--mlp-share has an effect only with --aggressive",
        ("--attention-share", 0.5): "--attention-share has an effect only with --aggressive",
        ("--aggressive", "--search", "/nowhere"): "/nowhere has no trials: run `jaxspec-train skip-search` first",
        ("--set", "/nowhere"): "there is no readable head at /nowhere",
        ("--cache-features", "x"): "--cache-features stores only the target's last features",
        ("--block-min", 0): "--block-min must be at least 1",
    },
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("target") / "ckpt", num_layers=2)


@pytest.mark.parametrize(
    ("name", "options", "words"), [(name, *case) for name, cases in REFUSED.items() for case in cases.items()]
)
def test_what_cannot_be_is_refused(name: str, options: tuple, words: str, target: Path, data: Path, tmp_path: Path):
    code, err = command(name, "--target", target, "--data", data, "--out", tmp_path / "head", *QUICK, *options)
    assert code == 2 and words in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_paths_may_be_text(target: Path, tmp_path: Path):
    recipe, data = jaxspec.Recipe(steps=1, batch_size=1, learning_rate=1e-3), jaxspec.DataMixture()
    settings = jaxspec.HeadSettings(target=target, data=data, recipe=recipe)
    never_called: Any = lambda *_: None
    vars(settings)["out"], vars(data)["data"] = str(tmp_path / "head"), str(tmp_path / "none")  # as from Python
    with pytest.raises(ValueError, match="none"):
        jaxspec.train_head(settings, Eagle(), never_called)
