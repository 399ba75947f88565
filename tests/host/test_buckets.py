"""Paths in buckets: what works as on a disk, what is repeated, and the sentences of what fails for good."""

import asyncio
import contextlib
import dataclasses
import errno
import http.client
import importlib.util
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.checkpoint import checksums
from jaxspec.checkpoint.config_json import CheckpointError, read_config
from jaxspec.checkpoint.loading import load
from jaxspec.checkpoint.parameters import module_to_dict, write_parts
from jaxspec.decoding.request import SamplingParams
from jaxspec.evaluate import evaluation
from jaxspec.evaluate.runlog import RunLog, log_of, read_finished
from jaxspec.host import buckets
from jaxspec.host.atomic import UNFINISHED, check_apart, check_folder, check_new, staged, write_whole
from jaxspec.host.buckets import BucketPath, files_under, to_path, with_paths
from jaxspec.host.json_lines import LineLog
from jaxspec.options.by_command import Eval, Report
from jaxspec.train.data import records
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.methods import lm
from jaxspec.train.options import Data, Lm
from jaxspec.train.run.folder import Run, open_run
from jaxspec.train.run.log import Log
from jaxspec.train.run.trainer import open_checkpoints
from tests.bucket import NAME, Bucket, Fault
from tests.evaluate import tiny

ROOT = f"gs://{NAME}"


@pytest.fixture
def root(in_bucket: Bucket) -> Path:
    return to_path(ROOT)


@pytest.fixture
def no_pauses(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs waits between two attempts."""
    from gcsfs import retry

    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))


class TestProxy:
    """What the emulator lacks, and faults."""

    def ask(self, bucket: Bucket, method: str, path: str, body: bytes = b"") -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", bucket.server.server_port)) as connection:
            connection.request(method, path, body, {"Content-Type": "text/plain"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def test_conditions_on_generations(self, in_bucket: Bucket):
        upload = f"/upload/storage/v1/b/{NAME}/o?uploadType=media&name=a"
        assert self.ask(in_bucket, "POST", f"{upload}&ifGenerationMatch=0", b"1") == 200
        assert self.ask(in_bucket, "POST", f"{upload}&ifGenerationMatch=0", b"2") == 412
        first = in_bucket.generation(NAME, "a")
        assert self.ask(in_bucket, "POST", f"{upload}&ifGenerationMatch={first}", b"3") == 200
        assert self.ask(in_bucket, "POST", f"{upload}&ifGenerationMatch={first}", b"4") == 412
        assert to_path(f"{ROOT}/a").read_text() == "3"
        assert self.ask(in_bucket, "DELETE", f"/storage/v1/b/{NAME}/o/a?ifGenerationMatch={first}") == 412
        assert in_bucket.names() == ["a"]

    def test_faults(self, in_bucket: Bucket, root: Path):
        (root / "a").write_text("whole")
        get = f"/storage/v1/b/{NAME}/o/a?alt=media"
        in_bucket.faults = [Fault("^GET .*media", 503), Fault("^GET .*media", "cut")]
        assert self.ask(in_bucket, "GET", get) == 503
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            self.ask(in_bucket, "GET", get)
        assert self.ask(in_bucket, "GET", get) == 200


def test_names(bucket: Bucket):
    path = to_path("gs://b1c/folder/file.json")
    assert to_path(Path("gs://b1c/folder/file.json")) == path and isinstance(path, BucketPath)
    assert str(path) == f"{path}" == path.as_posix() == "gs://b1c/folder/file.json"
    assert (path.name, path.suffix, str(path.parent)) == ("file.json", ".json", "gs://b1c/folder")
    assert (
        str(path.with_suffix(".jsonl")) == "gs://b1c/folder/file.jsonl" and str(path.parent / "x" / "y")[-3:] == "x/y"
    )
    assert path.relative_to(path.parent).as_posix() == "file.json"
    assert path.absolute() is path and path.expanduser() is path and path.resolve() is path
    assert pickle.loads(pickle.dumps(path)) == path and to_path(path) is path and not path.is_symlink()
    assert type(to_path("folder/x")) is type(Path())
    with pytest.raises(ValueError, match=r"gs:/+ names no bucket; write gs://BUCKET/FOLDER"):
        to_path("gs:///")


def test_other_addresses_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for address in ("s3://b/x", "https://huggingface.co/org/model", "file:///x"):
        for text in (address, Path(address)):
            with pytest.raises(ValueError, match="is no local path and not gs://BUCKET/FOLDER"):
                to_path(text)
    with pytest.raises(ValueError, match=r"^s3://b/x is no local path"):
        to_path(Path("s3://b/x"))
    with pytest.raises(ValueError, match="names no bucket"):
        to_path("gs:")
    Path("s3:").mkdir()
    assert to_path("s3://b") == Path("s3:/b") and to_path("./s4:/b") == Path("./s4:/b")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert to_path("~/x") == tmp_path / "x" and to_path(Path("x", "~")) == Path("x", "~")
    with pytest.raises(ValueError, match="~nobody-of-this-name/x begins with a home folder that is not known"):
        to_path("~nobody-of-this-name/x")
    Path("~nobody-of-this-name").touch()
    assert to_path("~nobody-of-this-name") == Path("~nobody-of-this-name")


def test_options_of_commands(bucket: Bucket):
    asked = Eval(target=Path("gs://b1c/x"), prompts=Path("y"), out=Path("gs://b1c/z.jsonl"))
    found = with_paths(asked)
    assert str(found.target) == "gs://b1c/x" and str(found.out) == "gs://b1c/z.jsonl"
    assert type(found.prompts) is type(asked.prompts)
    assert (found.prompts, found.sampling) == (asked.prompts, asked.sampling)
    reported = with_paths(Report(runs=(Path("a"), Path("gs://b1c/b")), out=Path("c")))
    assert [str(run) for run in reported.runs] == ["a", "gs://b1c/b"]
    vars(asked)["target"] = "gs://b1c/x"  # as from Python; types are checked in tests only
    assert with_paths(asked) == found
    local = with_paths(dataclasses.replace(asked, target=Path("t"), out=None))
    assert type(local.target) is type(asked.prompts)
    assert local == dataclasses.replace(asked, target=Path("t"), out=None)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="gs://b1c/x is in a bucket, which needs more packages: pip install gcsfs goo"):
        to_path("gs://b1c/x")


def test_files(root: Path):
    write_whole(root / "a" / "b.json", "é\n")
    write_whole(root / "a" / "c" / "d", b"1")
    assert (root / "a" / "b.json").read_text() == "é\n" and (root / "a" / "b.json").stat().st_size == 3
    assert (root / "a" / "c").is_dir() and (root / "a" / "c" / "d").is_file() and not (root / "x").exists()
    assert files_under(root / "a") == [root / "a" / "b.json", root / "a" / "c" / "d"]
    assert [*(root / "a").glob("*.json")] == [root / "a" / "b.json"] and root / "a" / "c" in (root / "a").iterdir()
    check_folder(root / "new" / "file")
    with pytest.raises(ValueError, match="exists already"):
        check_new(root / "a")
    check_new(root / "b")
    check_apart(root / "b", root / "a", Path("b"))
    with pytest.raises(ValueError, match=f"{ROOT}/b is read by this command"):
        check_apart(root / "b", Path("a"), root / "b")
    (root / "a" / "c" / "d").unlink()
    (root / "a" / "c" / "d").unlink(missing_ok=True)
    assert not (root / "a" / "c").exists()


def test_an_output_is_whole_when_its_last_file_is_there(root: Path, in_bucket: Bucket, capsys, tmp_path: Path):
    with staged(root / "out", 10) as folder:
        (folder / "data").write_text("1")
        assert (root / "out" / UNFINISHED).exists()
        (folder / "config.json").write_text("{}")
    assert in_bucket.names() == ["out/config.json", "out/data"]
    with pytest.raises(ValueError, match=f"{ROOT}/out exists already"), staged(root / "out", 1):
        pass
    with pytest.raises(IsADirectoryError), staged(root / "failed", 1) as folder:
        (folder / "data").write_bytes((root / "out" / "data").read_bytes() + tmp_path.read_bytes())
    assert in_bucket.names() == ["out/config.json", "out/data"]
    for name in (UNFINISHED, "old"):
        (root / "killed" / name).write_text("")
    with staged(root / "killed", 1) as folder:
        (folder / "config.json").write_text("{}")
    assert in_bucket.names()[0] == "killed/config.json" and "killed/old" not in in_bucket.names()
    assert f"removing what an unfinished run has left in {ROOT}/killed" in capsys.readouterr().err
    (root / "theirs" / "data").write_text("1")
    with pytest.raises(ValueError, match="exists already"), staged(root / "theirs", 1):
        pass
    assert "theirs/data" in in_bucket.names()


def test_a_folder_that_cannot_be_listed_is_not_empty(root: Path, in_bucket: Bucket):
    for name in ("a/b", "a/c/d", "ab"):
        (root / name).write_text("1")
    TestProxy().ask(in_bucket, "POST", f"/upload/storage/v1/b/{NAME}/o?uploadType=media&name=a/e/", b"1")
    assert "a/e/" in in_bucket.names(), "an object by which Google's console makes a folder"
    assert files_under(root / "a") == [root / "a/b", root / "a/c/d"]
    assert files_under(root / "a/b") == files_under(root / "x") == []
    in_bucket.faults = [Fault("^GET .*prefix=a", 403, 100)]
    with pytest.raises(OSError, match="access is denied"):
        files_under(root / "a")


def test_a_stream_that_is_cut(root: Path, in_bucket: Bucket, no_pauses: None):
    (root / "a").write_text("0123456789" * 100)
    with (root / "a").open("rb") as stream:
        assert stream.read(2) == b"01" and stream.seek(-3, 2) == 997 and stream.read() == b"789"
    in_bucket.faults = [Fault("^GET .*media", "cut", 100)]
    with (root / "a").open("rb") as stream, pytest.raises(OSError, match="does not answer") as found:
        stream.read(8)
    assert found.value.filename == f"{ROOT}/a"


def test_a_stream_without_permission(root: Path, in_bucket: Bucket, caplog: pytest.LogCaptureFixture):
    (root / "a").write_text("1")
    in_bucket.faults = [Fault("^GET .*media", 403, 100)]
    with (root / "a").open("rb") as stream, pytest.raises(OSError, match="access is denied"):
        stream.read()
    assert caplog.records == [], "a traceback precedes the sentence"


@pytest.mark.parametrize("refused", ["ocdbt", "_METADATA"])
def test_parameters_without_permission(refused: str, root: Path, in_bucket: Bucket):
    """TensorStore writes the arrays, and Orbax their metadata through gcsfs; their errors are of different types."""
    in_bucket.faults = [Fault(f"^POST .*{refused}", 403, 100)]
    params = {"a": np.ones(2, np.float32)}
    with pytest.raises(OSError, match="access is denied; ask the owner of the bucket") as found:
        write_parts(root / "params", params.items(), 100, "")
    assert found.value.filename == f"{ROOT}/params"


@pytest.mark.parametrize("refused", ["array_metadatas", "ocdbt"])
def test_checkpoints_of_a_run_without_permission(refused: str, root: Path, in_bucket: Bucket):
    in_bucket.faults = [Fault(f"^POST .*{refused}", 403, 100)]
    place = root / "checkpoints"
    with pytest.raises(OSError, match="access is denied; ask") as found, open_checkpoints(place) as checkpoints:
        checkpoints.save_async(1, {"a": jnp.ones(2)})
    assert found.value.filename == str(place)


@pytest.mark.parametrize(
    ("what", "number", "said"),
    [
        (403, errno.EACCES, "access is denied; ask the owner of the bucket"),
        (401, errno.EACCES, "no valid credentials; run `gcloud auth application-default login`"),
        (404, errno.ENOENT, "there is no such object, or no such bucket"),
    ],
)
def test_what_fails_for_good(what: int, number: int, said: str, root: Path, in_bucket: Bucket):
    (root / "a").write_text("1")
    in_bucket.faults = [Fault("", what, 100)]
    for work in ((root / "a").read_text, lambda: (root / "b").write_text("1")):
        with pytest.raises(OSError, match=said) as found:
            work()
        assert (found.value.errno, found.value.filename[:-1]) == (number, f"{ROOT}/")
    with pytest.raises(CheckpointError, match=said):
        read_config(root / "ckpt")
    assert len(in_bucket.requests) < 20, "it was tried again and again"


def test_a_bucket_is_no_file(root: Path):
    with pytest.raises(IsADirectoryError, match="it is a bucket and not an object in one"):
        root.read_text()


def test_a_bucket_that_does_not_answer(root: Path, in_bucket: Bucket, no_pauses: None):
    in_bucket.faults = [Fault("", 503, 100)]
    with pytest.raises(OSError, match="the bucket does not answer; try again later"):
        (root / "a").write_text("1")


def test_what_is_tried_again(root: Path, in_bucket: Bucket, no_pauses: None):
    in_bucket.faults = [Fault("^POST", 503, 2), Fault("^GET .*media", "cut"), Fault("^GET .*media", 429)]
    (root / "a").write_text("1" * 1000)
    assert (root / "a").read_text() == "1" * 1000
    assert [fault.left for fault in in_bucket.faults] == [0, 0, 0]


def test_appended_lines(root: Path, monkeypatch: pytest.MonkeyPatch):
    log = LineLog(root / "log.jsonl", "a log", "another")
    log.write({"seed": 1}, [{"line": 0}])
    log.append([{"line": 1}])
    assert log.read({"seed": 1}) == [{"line": 0}, {"line": 1}]
    log.append([{"line": 2}])
    log.append([{"line": 3}])
    assert len(log.lines()) == 3, "every line was uploaded"
    buckets.flush()
    assert log.read({"seed": 1}) == [{"line": number} for number in range(4)]
    monkeypatch.setattr(buckets, "APPEND_EVERY", -100.0)
    monkeypatch.setattr(buckets, "_UPLOAD_SHARE", -1e9)
    log.write({"seed": 1}, [])
    for number in range(2):
        log.append([{"line": number}])
        assert len(log.lines()) == number + 2
    monkeypatch.undo()
    log.append([{"line": 4}])
    log.path.unlink()
    buckets.flush()
    assert not log.path.exists()
    log.write({"seed": 1}, [])
    with pytest.raises(ValueError, match="seed is 1 there and 2 here"):
        log.read({"seed": 2})


def test_a_run_that_has_finished_is_there(root: Path):
    log = RunLog(log_of(root / "out.json"), {"settings": {}}, [])
    for _ in range(2):
        log.finish({"noise": 0.5})
    assert read_finished(root / "out.json.jsonl")[2] == {"noise": 0.5}


@pytest.fixture
def questions(root: Path, tmp_path: Path) -> Iterator[Path]:
    """Questions beside a checkpoint that was copied into the bucket."""
    local = tiny.checkpoint(tmp_path / "ckpt")
    for file in files_under(local):
        (root / "ckpt" / file.relative_to(local)).write_bytes(file.read_bytes())
    (root / "questions.jsonl").write_text("".join(json.dumps({"prompt": f"def f{i}("}) + "\n" for i in range(5)))
    yield root / "questions.jsonl"
    buckets.flush()


@pytest.mark.soak
def test_a_killed_evaluation_goes_on(questions: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert checksums.verify(root / "ckpt") > 3
    asked = Eval(
        target=root / "ckpt",
        prompts=questions,
        method="plain",
        batch_size=2,
        sampling=SamplingParams(max_new_tokens=8),
        dtype="float32",
    )
    evaluation.run(dataclasses.replace(asked, target=tmp_path / "ckpt", out=tmp_path / "out.jsonl"))

    def killed(plan, engine, left, settings):
        for number, line in enumerate(answered(plan, engine, left, settings)):
            if number == 3:
                raise SystemExit(143)
            yield line

    answered, out = evaluation.answered, root / "out.jsonl"
    monkeypatch.setattr(evaluation, "answered", killed)
    with pytest.raises(SystemExit):
        evaluation.run(dataclasses.replace(asked, out=out))
    buckets.flush()  # as the command does when it ends
    assert len(out.read_text().splitlines()) == 3
    monkeypatch.setattr(evaluation, "answered", answered)
    evaluation.run(dataclasses.replace(asked, out=out))
    assert out.read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["answers"] == 5 and found["settings"]["target"] == f"{ROOT}/ckpt"


def test_training_text(root: Path, tmp_path: Path):
    for folder in (tmp_path / "data", root / "data"):
        for name, text in (("b/c.py", "x = 1"), ("a.jsonl", '{"text": "hello"}'), (".hidden/d.py", "y"), ("e.txt", "")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    for name in ("", "a.jsonl", "b/c.py"):
        ours, theirs = (records.read(folder / "data" / name) for folder in (root, tmp_path))
        assert ours == theirs and len(ours) == (1 if name else 2)


@pytest.mark.soak
def test_a_run_resumes(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tokenizer, text, checkpoints and metrics: as on a disk, after an error between two checkpoints."""
    (tmp_path / "data").mkdir()
    for name in ("a.py", "shutil.py"):  # the latter is held out by its name
        (tmp_path / "data" / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(200)))

    def settings(out: Path) -> Lm:
        recipe = Recipe(steps=9, batch_size=4, learning_rate=1e-2, evaluate_every=6, save_every=4)
        data, vocab_size = Data(data=tmp_path / "data"), 270
        return Lm(
            out=out, data=data, recipe=recipe, layers=1, hidden_size=16, head_dim=8, vocab_size=vocab_size, context=16
        )

    def ends_early(log: Log, step: int, measures: Any) -> None:
        keep(log, step, measures)
        if step == 7:
            raise KeyboardInterrupt

    lm.train(settings(tmp_path / "lm"))
    keep = Log.step
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Log, "step", ends_early)
        lm.train(settings(root / "lm"))
    assert not (root / "lm" / "config.json").exists()
    assert Run(root / "lm.run").started
    asked = settings(root / "lm")
    with pytest.raises(ValueError, match=r"\(--steps is 9 there and 10 here\)"):
        lm.train(dataclasses.replace(asked, recipe=dataclasses.replace(asked.recipe, steps=10)))
    lm.train(asked)
    assert (root / "lm.run/metrics.jsonl").read_text() == (tmp_path / "lm.run/metrics.jsonl").read_text()
    ours, theirs = (module_to_dict(load(place / "lm").target) for place in (root, tmp_path))
    assert all(np.asarray(ours[name]).tobytes() == np.asarray(theirs[name]).tobytes() for name in theirs)
    (root / "other" / "file").write_text("")
    with pytest.raises(ValueError, match="is not the folder of a run"), open_run(root / "other", {}):
        pass
