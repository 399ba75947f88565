"""Hub ids wherever a checkpoint or head is: converted once, for the target that a head is used with."""

import errno
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.checkpoint import builtin, config_json, heads
from jaxspec.checkpoint import hub as requests
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.evaluate.questions import read_questions
from jaxspec.planning import shapes
from tests import hf_models
from tests.convert import gguf_files, published_heads, record_gguf_ids
from tests.convert.commands import run, tensors
from tests.convert.test_meta import LLAMA2, write_meta
from tests.hub import running
from tests.tokenizers import of_bytes


@pytest.fixture
def hub(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub with org/model and org/eagle. The list gets the names that are downloaded."""
    asked = list[str]()
    tensors, config = published_heads.KINDS["eagle"](target / "hf")
    there = {"org/model": target / "hf", "org/eagle": published_heads.write(tmp_path / "eagle", tensors, config)}

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(name)
        return str(there[name])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return asked


def test_a_model_with_a_head(hub: list[str], target: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    jaxspec.Engine("org/model", "eagle@org/eagle+chain,length=2")
    folder = tmp_path / "cache" / "hub"
    assert f"org/model is converted once, from {target / 'hf'} to {folder / 'org--model'}" in capsys.readouterr().err
    assert {*hub} == {"org/model", "org/eagle"}
    (head,) = folder.glob("org--eagle.*")
    assert heads.read_config(head).drafter == "eagle"
    hub.clear()
    again = jaxspec.Engine("org/model", "eagle@org/eagle+chain,length=2")
    assert hub == [] and again.models.draft is not None
    both = [module_to_dict(jaxspec.load(path).target) for path in ("org/model", target / "ckpt")]
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_a_draft_model_is_a_whole_model(hub: list[str], target: Path, tmp_path: Path):
    place = heads.find_head(target / "ckpt", "org/model")
    assert place == tmp_path / "cache" / "hub" / "org--model"
    assert config_json.read_config(place).family == "llama"


def test_a_model_with_its_medusa_heads(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One folder of the hub is the target and the head. A model may draft for itself, too."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    found = published_heads.medusa()
    merged = {f"medusa_head.{name}": array for name, array in found.items()} | tensors(target / "hf")
    config = json.loads((target / "hf" / "config.json").read_text()) | published_heads.MEDUSA
    both = published_heads.write(tmp_path / "both", merged, config)
    with running({"org/both": both, "org/model": target / "hf"}, tmp_path / "hub"):
        assert jaxspec.Engine("org/model", "draft-model@org/model").models.draft is not None
        drafted = jaxspec.Engine("org/both", "medusa@org/both")
    again = jaxspec.Engine("org/both", "medusa@org/both")
    for engine in (drafted, again):
        assert len(engine.models.draft.heads) == published_heads.MEDUSA_HEADS


def test_inspect_and_plan_convert_nothing(hub: list[str], tmp_path: Path):
    assert "llama" in run("inspect", "org/model").out
    assert shapes.find_model("org/model").config.hidden_size == published_heads.WIDTH
    assert hub and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["README.md"], "org/model on the hub holds no weights that can be read"),
        (["a-Q4.gguf", "a-Q8.gguf"], "holds several GGUF models, a-Q4.gguf, a-Q8.gguf; download one with `hf download"),
        (
            ["lit_model.pth"],
            "but lit_model.pth: a file of another name; if it is the model's state dict, call it pytorch_model.bin",
        ),
        (["sub/config.json", "sub/model.safetensors"], "but sub/config.json: a model in a folder of its own; name"),
        (["onnx/model.onnx", "config.json"], "but onnx/model.onnx: a compiled model"),
    ],
)
def test_what_has_no_weights_to_read(names: list[str], said: str, tmp_path: Path):
    for name in names:
        (file := tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    with running({"org/model": tmp_path / "model"}, tmp_path / "hub"):
        result = run("llama", "org/model", tmp_path / "ckpt")
    assert result.code == 2 and said in result.last, result.err
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("form", ["gguf", "meta"])
def test_a_draft_model_without_a_config(form: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    made, model = hf_models.make("llama", tmp_path / "hf", **(LLAMA2 if form == "meta" else {})), tmp_path / "model"
    if form == "meta":
        write_meta(made, model, 1, llama3=False, multiple_of=16, vocab_size=96)
    else:
        model.mkdir()
        gguf_files.model(model / "only-Q8_0.gguf", made)
    with running({"org/model": model}, tmp_path / "hub"):
        place = heads.find_head(target / "ckpt", "org/model")
        with pytest.raises(CheckpointError, match="org/model on the hub has no config"):
            shapes.find_model("org/model")
    assert config_json.read_config(place).source_format == form


@pytest.mark.parametrize("inside", [True, False])
def test_a_tokenizer(inside: bool, target: Path, tmp_path: Path):
    """A GGUF file is downloaded if there is no other tokenizer."""
    checkpoint = shutil.copytree(target / "ckpt", tmp_path / "ckpt")
    (tmp_path / "model").mkdir()
    gguf_files.vocabulary(tmp_path / "model" / "only-Q8_0.gguf", record_gguf_ids.vocabulary("smollm"))
    if not inside:
        of_bytes().save(str(tmp_path / "model" / "tokenizer.json"))
    with running({"org/model": tmp_path / "model"}, tmp_path / "hub") as hub:
        result = run("tokenizer", "org/model", checkpoint)
    assert result.code == 0, result.err
    assert ("only-Q8_0.gguf" in hub.requests) == inside
    assert (checkpoint / "tokenizer.json").is_file()


def test_one_of_several_hosts(hub: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(CheckpointError, match="run first: jaxspec-convert llama org/model FOLDER"):
        builtin.locate("org/model")
    assert hub == []


def test_what_is_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert builtin.is_hub_id("org/model-7B.v1") and builtin.is_hub_id(Path("org/model"))
    for name in ("runs/model", "model", "/org/model", "./org/model", "a/b/c", "builtin/heads"):
        assert not builtin.is_hub_id(name)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "GatedRepo", "org/model is gated: ask for access on its page of the hub, and set HF_TOKEN to a token"),
        (403, "GatedRepo", "org/model is gated: ask for access on its page of the hub, and set HF_TOKEN to a token"),
        (401, "RepoNotFound", "the hub has no such {}, or it is private; check the name, or set HF_TOKEN to a token"),
        (404, "RevisionNotFound", "org/model has no such revision on the hub; check --revision"),
        (403, "", "the hub denies access to org/model (403); set HF_TOKEN to a valid token that may read it"),
        (410, "", "org/model cannot be fetched from the hub: "),
    ],
)
def test_what_the_hub_refuses(status: int, code: str, said: str, tmp_path: Path):
    with running({}, tmp_path / "hub") as hub:
        hub.refusals = {"org/model": [(status, {"X-Error-Code": code})] * 9}
        result = run("llama", "org/model", tmp_path / "ckpt")
        assert (result.code, len(result.err.splitlines())) == (2, 1), result.err
        assert said.format("model") in result.last
        with pytest.raises(ValueError, match=re.escape(said.format("data set"))):
            read_questions("org/model")
    assert not (tmp_path / "ckpt").exists()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def download(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    result = run("llama", "org/model", tmp_path / "ckpt")
    assert result.last.startswith("error: org/model cannot be downloaded: ")
    assert result.last.endswith(": No space left on device; HF_HUB_CACHE can name a folder on another disk")


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests.exceptions"])  # by huggingface-hub's version
def test_a_broken_connection_is_tried_again(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def download(*_: object, **__: object) -> str:
        raise type("ConnectError", (OSError,), {"__module__": client})("refused")

    pauses = list[int]()
    monkeypatch.setattr(requests.time, "sleep", pauses.append)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    result = run("llama", "org/model", tmp_path / "ckpt")
    assert pauses == list(requests.PAUSES) and "the hub cannot be reached" in result.last


def test_a_busy_hub_names_the_pause(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pauses = list[int]()
    monkeypatch.setattr(requests.time, "sleep", pauses.append)
    with running({"org/model": target / "hf"}, tmp_path / "hub") as hub:
        hub.refusals = {"org/model": [(429, {"Retry-After": "45"})] * 2 + [(503, {})] * 2}
        result = run("llama", "org/model", tmp_path / "ckpt")
    assert result.code == 0, result.err
    assert 45 in pauses and "the hub answers 429; trying again in 45 s" in result.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "here/none",
            "there is no folder here/none, and it is not looked up on the hub, since there is a folder here",
        ),
        ("org/model@v2", "org/model@v2 is not a folder; write org/model --revision v2 for that revision on the hub"),
        ("here/file", "here/file is a file; name the folder that holds it and its config.json"),
        ("none", "none is not a folder; name a Hugging Face or Meta folder, or a hub id"),
    ],
)
def test_what_is_not_looked_up(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("here", "file").touch()
    assert run("llama", name, "out").last == f"error: {said}"
    assert run("llama", "org/model", "out", "--revision", "").last == "error: --revision is empty; name one or omit it"
