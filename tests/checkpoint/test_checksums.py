"""A bit that flips in a file of parameters is found, and the file is named."""

import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxspec.checkpoint import checksums, parameters
from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.config_json import CheckpointError
from tests.convert.commands import run


class Weights(nnx.Module):
    """A few parameters, which Orbax writes to files."""

    def __init__(self):
        self.kernel = nnx.Param(jnp.arange(4096.0))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a checkpoint with a head."""
    folder = tmp_path_factory.mktemp("sums") / "ckpt"
    for place in (folder, folder / "heads" / "eagle"):
        place.mkdir(parents=True)
        parameters.write_params(place / "params", parameters.module_to_dict(Weights()).items())
        checksums.write(place)
    shutil.copyfile(FOLDER / "config.json", folder / "config.json")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """One to damage."""
    return shutil.copytree(written, tmp_path / "ckpt")


def largest(folder: Path) -> Path:
    return max(
        (file for file in (folder / "params").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
    )


def test_all_files_are_as_they_were_written(folder: Path):
    assert checksums.verify(folder) == sum(file.is_file() for file in folder.glob("**/params/**/*"))
    told: list[int] = []
    checksums.verify(folder, told.append)
    assert sum(told) == checksums.size(folder) > 0


@pytest.mark.parametrize("of", [".", "heads/eagle"])
def test_no_parameters(of: str, folder: Path):
    shutil.rmtree(folder / of / "params")
    with pytest.raises(CheckpointError, match=r"params/\S+ is missing; convert or copy"):
        checksums.verify(folder)


@pytest.mark.parametrize("of", [".", "heads/eagle"])
def test_a_flipped_bit(of: str, folder: Path):
    file = largest(folder / of)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{file} is damaged: its SHA-256 is not the one in params.sha256"):
        checksums.verify(folder)
    found = run("inspect", folder, "--verify")
    assert found.code == 2 and f"{file} is damaged" in found.last and not found.out


def test_files_that_are_missing_or_too_many(folder: Path):
    (more := folder / "params" / "more").write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{more} is not among those of params.sha256"):
        checksums.verify(folder)
    more.unlink()
    (file := largest(folder)).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        checksums.verify(folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "params.sha256 is missing; convert or copy its folder again"),
        (b"\xff", "params.sha256 is damaged"),
        (b"0123  params/a\n", "params.sha256 is damaged: line 1"),
        (b"0" * 64 + b"  ../config.json\n", "params.sha256 is damaged: line 1"),
        (b"0" * 64 + b"  params/../../x\n", "is missing|is not among"),
    ],
)
def test_checksums_that_cannot_be_compared_with(content: bytes | None, says: str, folder: Path):
    (folder / checksums.NAME).unlink()
    if content is not None:
        (folder / checksums.NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        checksums.verify(folder)


def test_what_is_half_written_is_left_out(folder: Path):
    (folder / "heads" / ".eagle.0123abcd.part" / "params").mkdir(parents=True)
    assert checksums.verify(folder)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not there")
def test_sha256sum_reads_them(folder: Path):
    assert subprocess.run(["sha256sum", "--check", "--quiet", checksums.NAME], cwd=folder, check=False).returncode == 0


def test_builtin_is_as_it_was_written():
    found = run("inspect", "builtin", "--verify")
    assert found.code == 0 and "match their checksums" in found.err


def test_a_folder_of_hugging_face_keeps_none(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    found = run("inspect", tmp_path, "--verify")
    assert found.code == 2 and "not a jaxspec checkpoint or head" in found.last
