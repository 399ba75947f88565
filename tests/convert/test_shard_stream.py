"""A model on the hub or in a bucket, into a bucket: file by file, resumed where it was killed, and the same as from a
folder."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from huggingface_hub import constants

import jaxspec
from jaxspec.checkpoint import checksums, parameters
from jaxspec.checkpoint import hub as requests
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.commands import shard_stream
from jaxspec.convert import llama
from jaxspec.host import buckets
from jaxspec.host.buckets import to_path
from tests import hf_models, hub
from tests.bucket import NAME, Bucket, Fault
from tests.checkpoints import byte_tokenizer
from tests.convert import gguf_files
from tests.convert.commands import run, tensors
from tests.host import multihost

OUT = f"gs://{NAME}/ckpt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Hugging Face in several files."""
    path = tmp_path_factory.mktemp("hub") / "model"
    hf_models.make("llama", path, num_hidden_layers=2, shard_size="30KB")
    assert len([*path.glob("model-*.safetensors")]) > 3
    return path


@pytest.fixture
def there(folder: Path, in_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.Hub]:
    """A hub with that model as org/model."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(requests, "PAUSES", (0, 0))
    with hub.running({"org/model": folder}, tmp_path / "hub") as found:
        yield found


def upload(folder: Path, place: str) -> None:
    """Copies the files of a folder into a bucket."""
    for file in folder.iterdir():
        to_path(f"{place}/{file.name}").write_bytes(file.read_bytes())


@pytest.fixture
def no_weights(in_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions in a bucket write everything but the parameters, which take many requests."""

    def write(*arguments: Any) -> None:
        _, files, _, _, _, (index, count) = arguments
        for file in files[index::count]:
            file.record.write_text(json.dumps({"parts": {}, "sha256": {}}))

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(shard_stream, "_write_params", write)


def same_as_from(folder: Path, tmp_path: Path) -> None:
    """Checks the checkpoint in the bucket."""
    llama.convert(folder, tmp_path / "ckpt")
    both = [parameters.module_to_dict(jaxspec.load(path).target) for path in (OUT, tmp_path / "ckpt")]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert checksums.verify(to_path(OUT)) > 10


@pytest.mark.soak
def test_killed_and_resumed(there: hub.Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there.faults = {"model-00002": [429, 503]}
    write, calls = parameters.write_parts, list[str]()

    def dies(*args: object) -> dict[str, list[str]]:
        calls.append("")
        if len(calls) == 3:
            (to_path(OUT) / "params" / "00002-00000" / "half").write_text("")
            raise OSError("the link broke")
        return write(*args)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(parameters, "write_parts", dies)
        result = run("llama", "org/model", OUT)
    assert result.code == 1 and "the link broke" in result.last, result.err
    assert "the hub answers 429; trying again in 0 s" in result.err
    other = run("llama", "org/model", OUT, "--dtype", "bfloat16")
    assert f'error: {OUT} is unfinished and was begun with {{"source": "org/model", ' in other.last
    there.requests.clear()
    result = run("llama", "org/model", OUT)
    assert result.code == 0 and "of weights on this disk" in result.err, result.err
    weights = [name for name in there.requests if name.endswith("safetensors")]
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert [weights.count(name) for name in files] == [1, 1, *[2] * (len(files) - 2)]  # a header, and perhaps the file
    assert not [*tmp_path.rglob("*.safetensors")]
    same_as_from(folder, tmp_path)
    assert run("llama", "org/model", OUT).last == f"error: {OUT} exists already; name another output or remove it first"


@pytest.mark.soak
def test_on_two_hosts(there: hub.Hub, in_bucket: Bucket, folder: Path, tmp_path: Path):
    around = {**in_bucket.environment, **there.environment(tmp_path / "hub"), "JAXSPEC_CACHE": str(tmp_path / "cache")}
    command = ("jaxspec-convert", "llama", "org/model", OUT)
    multihost.all_ended(multihost.start([command], processes=2, devices=1, **around))
    files = [file.name for file in folder.glob("*.safetensors")]
    weights = [name for name in there.requests if name in files]
    assert len(weights) == 3 * len(files)  # two headers, and the file once
    same_as_from(folder, tmp_path)


@pytest.mark.soak
def test_a_model_of_more_than_a_gigabyte(in_bucket: Bucket, tmp_path: Path):
    """Disk and memory stay bounded; both are printed."""
    folder = tmp_path / "large"
    hf_models.make(
        "llama", folder, hidden_size=2048, intermediate_size=5632, vocab_size=32_000, num_hidden_layers=5,
        shard_size="200MB",
    )  # fmt: skip
    sizes = sorted(file.stat().st_size for file in folder.glob("model-*.safetensors"))
    assert sum(sizes) > 1.4e9
    with hub.running({"org/model": folder}, tmp_path / "hub") as found:
        around = {**in_bucket.environment, **found.environment(tmp_path / "hub")}
        command = ("jaxspec-convert", "llama", "org/model", OUT)
        (running,) = multihost.start([command], processes=1, devices=1, **around)
        _, err = running.communicate(timeout=1800)
    shutil.rmtree(folder)  # pytest keeps the folders of three runs
    assert running.returncode == 0, err
    found = re.search(r"at most ([\d.]+) MB of weights on this disk, and ([\d.]+) ([MG])B of memory", err)
    assert found is not None and float(found[1]) * 1e6 <= sizes[-1] + sizes[-2] + 1e6
    assert float(found[2]) * {"M": 1e6, "G": 1e9}[found[3]] < 1.3e9  # of which half a gigabyte are libraries


def test_a_damaged_file(there: hub.Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "promised", lambda file: "0" * 64)
    result = run("llama", "org/model", OUT)
    assert result.code == 2 and "arrived damaged: its SHA-256 is not the one that the hub gives" in result.last


def test_two_files_at_most(there: hub.Hub, tmp_path: Path):
    model = shard_stream.look("org/model", None)
    assert model is not None
    shards = shard_stream.Shards(model, tmp_path)
    for name in model.shards:
        shards.path(name)
        shards.begin([*model.shards][-1])
        assert len([*tmp_path.glob("*.safetensors")]) <= 2
    assert shards.most <= 2 * max(shard.size for shard in model.shards.values())
    shards.close()


def test_the_index_names_the_files(there: hub.Hub, folder: Path, tmp_path: Path):
    """A save of the model in fewer files leaves older ones beside it, which a folder's reader does not read either."""
    shutil.copytree(folder, model := tmp_path / "model")
    names = sorted(file.name for file in model.glob("*.safetensors"))
    (model / "model-00001-of-00009.safetensors").write_bytes(b"older")
    upload(model, f"gs://{NAME}/hf")
    there.models["org/twice"] = model
    for source in ("org/twice", f"gs://{NAME}/hf"):
        found = shard_stream.look(source, None)
        assert found is not None and [*found.shards] == names
    to_path(f"gs://{NAME}/hf/{names[0]}").unlink()
    with pytest.raises(CheckpointError, match=f"shard {names[0]} is named in gs://.* but absent; download it again"):
        shard_stream.look(f"gs://{NAME}/hf", None)


@pytest.mark.usefixtures("no_weights")
def test_a_host_that_comes_late(in_bucket: Bucket, tmp_path: Path):
    """There is one file for two hosts."""
    hf_models.make("llama", tmp_path / "hf", num_hidden_layers=1)
    upload(tmp_path / "hf", f"gs://{NAME}/hf")
    host = lambda i, *more: run(
        "llama", f"gs://{NAME}/hf", OUT, "--coordinator", "h:1", "--processes", 2, "--process-id", i, *more
    )
    assert host(0).last.startswith(f"wrote {OUT}: llama, ")
    before = in_bucket.names()
    late = host(1)
    assert late.code == 0 and late.last == f"{OUT} is complete: nothing is left to convert", late.err
    assert in_bucket.names() == before
    exists = f"error: {OUT} exists already; name another output or remove it first"
    assert host(1, "--dtype", "bfloat16").last == exists


@pytest.mark.soak
def test_from_a_bucket(in_bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    source, folder = f"gs://{NAME}/hf", tmp_path / "hf"
    hf_models.make("llama", folder, num_hidden_layers=1)
    upload(folder, source)
    in_bucket.faults = [Fault("^GET .*model.safetensors.*alt=media", "cut")]
    result = run("llama", source, OUT)
    assert result.code == 0 and "of weights on this disk" in result.err, result.err
    assert not in_bucket.faults[0].left and not [*(tmp_path / "jaxspec-shards").iterdir()]
    same_as_from(folder, tmp_path)


@pytest.mark.usefixtures("no_weights")
def test_another_tokenizer_goes_before_that_of_a_gguf_file(tmp_path: Path):
    """As in a conversion to a disk."""
    made, other = hf_models.make("llama", tmp_path / "hf", num_hidden_layers=1), tmp_path / "other"
    upload(tmp_path / "hf", f"gs://{NAME}/hf")
    byte_tokenizer().save_pretrained(other)
    gguf_files.model(other / "m.gguf", made, gguf_files.byte_level("llama-bpe"))
    result = run("llama", f"gs://{NAME}/hf", OUT, "--tokenizer", other)
    assert result.code == 0, result.err
    assert to_path(f"{OUT}/tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


@pytest.mark.soak
def test_a_bucket_that_changes(in_bucket: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    source = f"gs://{NAME}/hf"
    upload(folder, source)
    file = to_path(f"{source}/model-00002-of-0000{len([*folder.glob('model-*')])}.safetensors")
    before = buckets.md5
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "md5", lambda path: "another" if path == file else before(path))
        result = run("llama", source, OUT)
    assert result.last == f"error: {file}: it arrived damaged; run the same command again"
    assert f'error: {OUT} is unfinished and was begun with {{"source": "{source}", ' in run("llama", source, OUT).last
    file.write_bytes(b"short")
    assert run("llama", source, f"{OUT}-2").last.startswith(f"error: {file} is not a whole safetensors file (")


@pytest.mark.soak
def test_a_model_without_safetensors(there: hub.Hub, folder: Path, tmp_path: Path):
    torch.save({name: torch.from_numpy(each) for name, each in tensors(folder).items()}, tmp_path / "model.bin")
    there.models["org/old"] = old = tmp_path / "old"
    old.mkdir()
    (tmp_path / "model.bin").rename(old / "pytorch_model.bin")
    shutil.copy(folder / "config.json", old)
    result = run("llama", "org/old", OUT)
    assert result.code == 0, result.err
    same_as_from(folder, tmp_path)


def test_a_hub_that_stays_busy(there: hub.Hub, in_bucket: Bucket):
    there.faults = {"model-00002": [429] * 9}
    result = run("llama", "org/model", OUT)
    assert result.code == 2 and "org/model cannot be fetched from the hub: 429 Too Many Requests" in result.last
    assert result.last.endswith("; run the same command again later")
    assert in_bucket.names() == []


def test_no_such_model(there: hub.Hub):
    result = run("llama", "org/other", OUT)
    assert result.code == 2 and "there is no org/other here, and the hub has no such model" in result.last
