"""The command itself: what it prints, and how it ends."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich import filesize

from jaxspec.host import atomic, terminal
from tests import hf_models
from tests.convert.commands import inspected, run
from tests.convert.test_meta import write_meta


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "hf"
    hf_models.make("mistral", path)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["llama", "export", "inspect"]),
        (["llama"], ["SRC", "OUT"]),
        (["lama", "a", "b"], ["lama"]),
        (["llama", "a", "b", "--dtype", "float8"], ["float8", "bfloat16", "float32"]),
        (["llama", "a", "b", "--tokeniser", "x"], ["--tokeniser", "--tokenizer"]),
        (["llama", "a", "b", "--revision", "main"], ["--revision needs a hub id"]),
        (["export", "a", "b", "--format", "gguf"], ["gguf", "hf"]),
        (["inspect", "/nowhere"], ["/nowhere is not a folder"]),
    ],
)
def test_bad_arguments_end_in_one_sentence(arguments: list[str], words: list[str]):
    result = run(*arguments)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert not set(result.err) & set("╭│╰─")
    assert all(word in result.last for word in words), result.last


def test_inspect(model: Path, tmp_path: Path):
    source = inspected(model)
    assert source["format"] == "Hugging Face"
    assert source["model.layers.0.mlp.down_proj.weight"] == "[32, 48]"
    assert source["files"] == "model.safetensors"

    run("llama", model, tmp_path / "ckpt", "--dtype", "bfloat16")
    for head in ("eagle", "medusa"):
        (tmp_path / "ckpt" / "heads" / head).mkdir(parents=True)
        (tmp_path / "ckpt" / "heads" / head / "config.json").write_text("{}")
    (tmp_path / "ckpt" / "heads" / "unfinished").mkdir()
    ours = inspected(tmp_path / "ckpt")
    assert ours["format"] == "jaxspec checkpoint, converted from huggingface in float32"
    assert ours["layers.0.mlp.down.kernel"] == "[48, 32]"
    assert ours["heads"] == "eagle, medusa"
    assert (ours["dtype"], ours["parameters"]) == ("bfloat16 (30 tensors)", "29,408 (58.8 kB)")
    for key in ("family", "layers", "hidden size", "vocabulary", "positions", "end of sequence"):
        assert ours[key] == source[key]
    assert source["family"] == "mistral"
    assert inspected(Path("builtin"))["format"] == "jaxspec checkpoint, trained by jaxspec in bfloat16"
    assert source["attention heads"] == "4 query heads, 2 KV heads, head size 8"

    meta = hf_models.make("llama", tmp_path / "hf", intermediate_size=96)
    write_meta(meta, tmp_path / "meta", 2, llama3=False, multiple_of=16)
    found = inspected(tmp_path / "meta")
    assert (found["format"], found["files"]) == ("Meta or Mistral", "consolidated.00.pth")
    assert found["layers.0.attention.wo.weight"] == "[32, 32]"


def only(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_full_disk_is_refused_before_the_start(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(atomic.shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    result = run("llama", model, tmp_path / "ckpt")
    assert result.code == 1
    assert "needs 1.2 MB more and its disk has 100.0 kB free" in result.last
    assert only(tmp_path) == []


def test_disk_that_fills_up(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage, asked = shutil.disk_usage(tmp_path), iter(range(100))
    shrinking = lambda _: usage._replace(free=usage.free if next(asked) < 5 else 0)
    monkeypatch.setattr(atomic.shutil, "disk_usage", shrinking)
    assert run("llama", model, tmp_path / "ckpt").code == 1
    assert only(tmp_path) == []


def test_interrupt(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxspec.checkpoint.parameters.write_params", interrupted)
    assert run("llama", model, tmp_path / "ckpt")[::2] == (130, run_warning(model) + "interrupted\n")
    assert only(tmp_path) == []


def run_warning(model: Path) -> str:
    return (
        f"warning: {model} holds no tokenizer that can be read (it has none of the files tokenizer.json, "
        "tokenizer.model, vocab.json, tekken.json); without one only token ids can be decoded; "
        "`jaxspec-convert llama` takes a folder with one as --tokenizer\n"
    )


SLOWLY = """
import time
from jaxspec.checkpoint import parameters
from jaxspec.commands import convert
write = parameters.write_params
parameters.write_params = lambda path, params, _: write(path, (time.sleep(0.2) or pair for pair in params), 1)
convert.main()
"""


def test_terminated_run(model: Path, tmp_path: Path):
    """That a killed one leaves no output is shown in `tests/host/test_interrupted_conversions.py`."""
    command = [sys.executable, "-c", SLOWLY, "llama", str(model), str(tmp_path / "ckpt")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not only(tmp_path) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and err.splitlines()[-1] == "terminated"
    assert only(tmp_path) == []


def test_hub_ids(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert not any(".py" in pattern for pattern in allow_patterns)
        return str(model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert run("llama", "org/model", tmp_path / "ckpt", "--revision", "v2").code == 0
    assert asked == [("org/model", "v2")]


def test_hub_out_of_reach(tmp_path: Path):
    result = run("llama", "no-such-org/no-such-model", tmp_path / "ckpt")
    assert result.code == 2
    assert "the hub cannot be reached" in result.last
    assert only(tmp_path) == []


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    clock = iter((0.0, 1.0, 11.0, 12.0, 22.0))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with terminal.progress("converting x:", 4_000_000, form=filesize.decimal) as shown:
        for _ in range(4):
            shown.advance(1_000_000)
    assert capsys.readouterr().err == "converting x: 2.0 MB of 4.0 MB\nconverting x: 4.0 MB of 4.0 MB\n"
