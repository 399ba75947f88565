"""A run's log identifies the measured weights, so a run with other weights of the same name does not resume it."""

from pathlib import Path

import pytest

from jaxspec.checkpoint import checksums
from jaxspec.checkpoint.heads import CALIBRATION
from jaxspec.costs.calibration import weights_sha256
from jaxspec.evaluate import run_description
from jaxspec.evaluate.runlog import RunLog
from tests.evaluate import tiny


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tiny.checkpoint(tmp_path / "ckpt")
    (path / "heads").mkdir()
    tiny.checkpoint(path / "heads" / "draft-model")
    return path


def weights_of(target: Path) -> dict:
    return run_description.weights_of(target, [None, "draft-model", None])


def test_a_head_that_was_trained_again_is_another(target: Path, tmp_path: Path):
    before, head = weights_of(target), target / "heads" / "draft-model"
    assert before["heads_sha256"].keys() == {"draft-model"}
    (head / "loss.jsonl").write_text("a log beside it", encoding="utf-8")
    (target / "out.json").write_text("{}", encoding="utf-8")
    assert weights_of(target) == before

    log = RunLog(tmp_path / "out.jsonl", {"settings": before}, ())
    assert log.log is not None
    largest = max((head / "params").rglob("*"), key=lambda file: file.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # of the same size
    checksums.write(head)
    after = weights_of(target)
    assert after != before and after["params_sha256"] == before["params_sha256"]
    with pytest.raises(ValueError, match=r"belongs to a run with other settings \(heads_sha256 is"):
        RunLog(tmp_path / "out.jsonl", {"settings": after}, ())


def test_a_head_that_was_calibrated_is_another(target: Path):
    before = weights_of(target)
    (target / "heads" / "draft-model" / CALIBRATION).write_text('{"temperatures": [2.0]}')
    assert weights_of(target)["heads_sha256"] != before["heads_sha256"]


def test_a_target_that_was_written_again_is_another(target: Path, tmp_path: Path):
    assert weights_sha256(target) != weights_sha256(tiny.checkpoint(tmp_path / "again"))
