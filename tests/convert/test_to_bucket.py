"""Conversion into a bucket: the same weights as on a disk, also over a bad connection, and nothing half-written."""

from pathlib import Path

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoint import checksums, parameters
from jaxspec.checkpoint.config_json import CheckpointError, head_names
from jaxspec.convert import heads, llama, transfer
from jaxspec.host.atomic import is_whole
from jaxspec.host.buckets import to_path
from tests import hf_models
from tests.bucket import NAME, Bucket, Fault
from tests.convert import published_heads
from tests.convert.commands import run


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Hugging Face, smaller than `target`."""
    folder = tmp_path_factory.mktemp("bucket") / "hf"
    hf_models.make("llama", folder, num_hidden_layers=1)
    return folder


def test_a_model(in_bucket: Bucket, hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transfer, "_SMALLEST_GROUP", 30_000)  # two parts: each takes a hundred requests
    ckpt = f"gs://{NAME}/ckpt"
    result = run("llama", hf, ckpt)
    assert result.code == 0 and f"wrote {ckpt}: llama" in result.err
    names = in_bucket.names()
    assert "ckpt/params/00001/commit_success.txt" in names and not [name for name in names if "unfinished" in name]
    assert checksums.verify(to_path(ckpt)) > 10
    in_bucket.faults = [Fault("^GET .*alt=media&tensorstore", "cut")]
    model = jaxspec.load(ckpt)
    assert in_bucket.faults[0].met == 1
    llama.convert(hf, tmp_path / "ckpt")
    both = [parameters.module_to_dict(each) for each in (model.target, jaxspec.load(tmp_path / "ckpt").target)]
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.soak
def test_a_head_and_an_export(in_bucket: Bucket, target: Path, tmp_path: Path):
    ckpt, get = f"gs://{NAME}/ckpt", "^GET .*alt=media"
    in_bucket.faults = [Fault("^POST .*upload", 503, 2), Fault(get, "cut"), Fault(get, 503), Fault(get, "cut")]
    llama.convert(target / "hf", to_path(ckpt))
    tensors, config = published_heads.KINDS["eagle"](target / "hf")
    source = published_heads.write(tmp_path / "eagle", tensors, config)
    assert run("head", source, f"{ckpt}/heads/eagle", "--target", ckpt).code == 0
    heads.convert(source, tmp_path / "head", target / "ckpt")
    assert head_names(ckpt) == ("eagle",)
    model = jaxspec.load(ckpt)
    assert not [fault for fault in in_bucket.faults if fault.left]
    texts = [
        jaxspec.Engine(model, f"eagle@{head}+chain,length=2").generate([[1, 2, 3]], max_new_tokens=8)[0]
        for head in ("eagle", f"{ckpt}/heads/eagle", tmp_path / "head")
    ]
    assert texts[0].tokens == texts[1].tokens == texts[2].tokens
    assert [text.statistics for text in texts[1:]] == [texts[0].statistics] * 2
    assert "eagle" in run("inspect", ckpt, "--verify").out
    assert run("export", ckpt, f"gs://{NAME}/back").code == 0
    assert to_path(f"gs://{NAME}/back/model.safetensors").read_bytes() == written(target / "ckpt", tmp_path / "back")


def written(ckpt: Path, out: Path) -> bytes:
    """The safetensors of an export to a disk."""
    assert run("export", ckpt, out).code == 0
    return (out / "model.safetensors").read_bytes()


def test_a_conversion_that_fails(in_bucket: Bucket, hf: Path, monkeypatch: pytest.MonkeyPatch):
    out = to_path(f"gs://{NAME}/ckpt")

    def full(*_: object) -> None:
        (out / "params" / "half").write_text("")
        raise OSError("the link broke")

    with monkeypatch.context() as patch:
        patch.setattr(parameters, "write_params", full)
        with pytest.raises(OSError, match="the link broke"):
            llama.convert(hf, out)
    assert in_bucket.names() == []
    with pytest.raises(CheckpointError, match="there is no readable jaxspec checkpoint"):
        jaxspec.load(out)


def test_without_permission(in_bucket: Bucket, hf: Path):
    in_bucket.faults = [Fault("^(POST|PUT)", 403, 1000)]
    result = run("llama", hf, f"gs://{NAME}/ckpt")
    assert result.code == 1
    assert result.last.startswith(f"error: gs://{NAME}/ckpt/.unfinished: access is denied; ask the owner of the bucket")


def test_without_permission_to_delete(in_bucket: Bucket, hf: Path):
    in_bucket.faults = [Fault("^DELETE", 403, 1000)]
    assert run("llama", hf, f"gs://{NAME}/ckpt").code == 0
    assert "ckpt/.unfinished" in in_bucket.names()
    assert is_whole(to_path(f"gs://{NAME}/ckpt")) and jaxspec.load(f"gs://{NAME}/ckpt")


def test_parameters_that_cannot_be_written(in_bucket: Bucket, hf: Path):
    in_bucket.faults = [Fault("^(POST|PUT) .*params", 403, 1000)]
    result = run("llama", hf, f"gs://{NAME}/ckpt")
    assert result.code == 1 and "error: gs://" in result.last
    assert "/ckpt/params: access is denied; ask the owner of the bucket" in result.last
    assert in_bucket.names() == []


def test_parameters_without_permission(in_bucket: Bucket, hf: Path):
    ckpt = f"gs://{NAME}/ckpt"
    llama.convert(hf, to_path(ckpt))
    in_bucket.faults = [Fault("^GET .*manifest", 403, 1000)]
    with pytest.raises(CheckpointError, match="cannot be read: access is denied; ask the owner of the bucket"):
        jaxspec.load(ckpt)
