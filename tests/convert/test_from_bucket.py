"""Sources in a bucket, converted to a disk: models, heads and tokenizers, and what is refused."""

from pathlib import Path

import jax
import numpy as np
import pytest
from huggingface_hub import constants

import jaxspec
from jaxspec.checkpoint import parameters
from jaxspec.host import buckets
from jaxspec.host.buckets import to_path
from tests import hf_models, hub
from tests.bucket import NAME, Bucket, Fault
from tests.convert import gguf_files, published_heads
from tests.convert.commands import run

SOURCE = f"gs://{NAME}/source"


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def upload(folder: Path) -> None:
    """Copies the files of a folder to SOURCE."""
    for file in folder.iterdir():
        to_path(f"{SOURCE}/{file.name}").write_bytes(file.read_bytes())


def test_a_model_and_its_tokenizer(in_bucket: Bucket, target: Path, tmp_path: Path):
    upload(target / "hf")
    to_path(f"{SOURCE}/notes.bin").write_bytes(b"not downloaded")
    to_path(f"{SOURCE}/additional_chat_templates/tool_use.jinja").write_bytes(b"t")
    in_bucket.faults = [Fault("^GET .*model.safetensors.*alt=media", "cut")]
    out = tmp_path / "ckpt"
    result = run("llama", SOURCE, out)
    assert result.code == 0, result.err
    assert not in_bucket.faults[0].left
    assert f"warning: {SOURCE} holds no tokenizer" in result.err, "not the copy, which is removed"
    read = [each for each in in_bucket.requests if each.startswith("GET") and "alt=media" in each]
    assert any("tool_use.jinja" in each for each in read) and not any("notes.bin" in each for each in read)
    both = [parameters.module_to_dict(jaxspec.load(path).target) for path in (out, target / "ckpt")]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert f"error: {SOURCE} holds no tokenizer that can be read" in run("tokenizer", SOURCE, out).last
    assert [file.name for file in tmp_path.iterdir()] == ["ckpt", "jaxspec-shards"]
    assert not [*(tmp_path / "jaxspec-shards").iterdir()]


def test_a_head(in_bucket: Bucket, target: Path, tmp_path: Path):
    tensors, config = published_heads.KINDS["eagle"](target / "hf")
    upload(published_heads.write(tmp_path / "eagle", tensors, config))
    result = run("head", SOURCE, tmp_path / "head", "--target", target / "ckpt")
    assert result.code == 0, result.err
    assert run("inspect", SOURCE).out == run("inspect", tmp_path / "eagle").out


@pytest.mark.parametrize("named", ["", "/m-Q8_0.gguf"], ids=["folder", "file"])
def test_a_gguf_file(named: str, in_bucket: Bucket, tmp_path: Path):
    (tmp_path / "model").mkdir()
    gguf_files.model(tmp_path / "model" / "m-Q8_0.gguf", hf_models.make("llama", tmp_path / "hf"))
    upload(tmp_path / "model")
    result = run("llama", f"{SOURCE}{named}", tmp_path / "ckpt")
    assert result.code == 0, result.err


def test_medusa_heads_of_the_hub(target: Path, tmp_path: Path):
    tensors, config = published_heads.KINDS["medusa"](target / "hf")
    folder = published_heads.write(tmp_path / "medusa", tensors, config, "medusa_lm_head.safetensors")
    with hub.running({"org/medusa": folder}, tmp_path / "hub"):
        result = run("head", "org/medusa", tmp_path / "head", "--target", target / "ckpt")
        assert "medusa" in run("inspect", "org/medusa").out
    assert result.code == 0, result.err


def test_what_is_refused(in_bucket: Bucket, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "ckpt"
    assert "error: gs://jaxspec-tests/source: there is no such object" in run("llama", SOURCE, out).last
    upload(target / "hf")
    assert run("llama", SOURCE, out, "--revision", "main").last == (
        f"error: --revision needs a hub id, and {SOURCE} is not one"
    )
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "md5", lambda _: "another")
        assert "it arrived damaged; run the same command again" in run("llama", SOURCE, out).last
    to_path(f"{SOURCE}/config.json").write_text("{")
    for place in (out, f"gs://{NAME}/ckpt"):  # the latter file by file
        assert run("llama", SOURCE, place).last.startswith(f"error: {SOURCE}/config.json is not valid JSON (")
    in_bucket.faults = [Fault("^GET .*alt=media", 403, 1000)]
    assert f"error: {SOURCE}" in run("llama", SOURCE, out).last
    assert not out.exists()
