"""`jaxspec eval --shard` and `--merge`: the joined answers are one machine's, and what does not belong is refused."""

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxspec.decoding.request import SamplingParams
from jaxspec.decoding.strategy import CostTable
from jaxspec.evaluate import evaluation
from jaxspec.evaluate.evaluation import numbers_of, parse_shard
from jaxspec.options.by_command import Eval, Merge
from tests.evaluate import tiny

SUMS = [{"question": f"{i} + {i}?", "answer": f"They are {2 * i}.\n#### {2 * i}"} for i in range(5)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one machine, whole.jsonl, and of three shards, 1.jsonl to 3.jsonl."""
    folder = tmp_path_factory.mktemp("shards")
    asked = Eval(
        target=tiny.checkpoint(folder / "ckpt"),
        prompts=tiny.prompts(folder / "sums.jsonl", SUMS),
        method="ngram+static",
        batch_size=2,
        samples=2,
        sampling=SamplingParams(max_new_tokens=8, temperature=1.0, seed=3),
        dtype="float32",
        out=folder / "whole.jsonl",
    )
    evaluation.run(asked)
    for number in (1, 2, 3):
        more = {"out": folder / f"{number}.jsonl", "shard": f"{number}/3"}
        evaluation.run(dataclasses.replace(asked, **more))
    return folder


@pytest.fixture
def shards(finished: Path, tmp_path: Path) -> Path:
    """A copy of these results."""
    return shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("ckpt"))


def test_joined_answers_are_one_machines(shards: Path, capsys: pytest.CaptureFixture):
    out = shards / "merged.jsonl"
    evaluation.merge(Merge(merge=tuple(shards / f"{number}.jsonl" for number in (2, 3, 1)), out=out))
    assert out.read_bytes() == (shards / "whole.jsonl").read_bytes()
    merged, whole = (values(file) for file in (out, shards / "whole.jsonl"))
    assert {**merged, "seconds": 0, "tokens_per_second": 0} == {**whole, "seconds": 0, "tokens_per_second": 0}
    each = [values(shards / f"{number}.jsonl") for number in (1, 2, 3)]
    assert merged["seconds"] == pytest.approx(sum(one["seconds"] for one in each))
    assert merged["tokens_per_second"] == pytest.approx(merged["timed_tokens"] / merged["seconds"])
    assert sorted(one["answers"] for one in each) == [2, 4, 4]
    assert "exact_match: " in capsys.readouterr().out


def values(file: Path) -> dict[str, Any]:
    return json.loads(file.with_suffix(".json").read_text())


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change of the results of shard 3."""

    def work(folder: Path) -> None:
        found = values(file := folder / "3.jsonl")
        change(found)
        file.with_suffix(".json").write_text(json.dumps(found))

    return work


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """A change of the answers of shard 3."""

    def work(folder: Path) -> None:
        file = folder / "3.jsonl"
        file.write_text("".join(change(file.read_text().splitlines(keepends=True))))

    return work


def as_shard(number: int) -> Callable[[Path], Any]:
    """Shard 3 is replaced by another one."""
    return lambda folder: [shutil.copy(folder / f"{number}.{end}", folder / f"3.{end}") for end in ("jsonl", "json")]


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda folder: (folder / "3.jsonl").unlink(), "there is no .*3.jsonl; name the files that"),
        (lambda folder: (folder / "3.json").write_text("[]"), "are not results of `jaxspec eval --shard`"),
        (as_shard(2), r"2.jsonl and .*3.jsonl are both shard 2/3; name one"),
        (changed(lambda found: found.pop("answers")), "shard 3/3 in .* is not finished; run its command again"),
        (changed(lambda found: found.pop("device")), "shard 3/3 in .* is not finished; run its command again"),
        (changed(lambda found: found["settings"].update(questions=2)), "its answers are not those of shard 3/3"),
        (changed(lambda found: found["settings"].update(shard="3/4")), "1/3, and .*3.jsonl is shard 3/4"),
        (changed(lambda found: found["settings"].update(shard="2/3")), "its answers are not those of shard 2/3"),
        (changed(lambda found: found["settings"].update(shard=None)), "a whole evaluation and not of a shard"),
        (changed(lambda found: found["settings"].update(method="plain")), "method is ngram.* there and plain here"),
        (changed(lambda found: found["settings"].update(params_sha256="0")), "params_sha256 is .* there and 0 here"),
        (changed(lambda found: found["settings"].update(temperature=0.5)), "temperature is 1.0 there and 0.5 here"),
        (lines(lambda kept: kept[1:]), "3.jsonl was changed"),
        (lines(lambda kept: [*kept[1:], kept[1]]), "3.jsonl was changed"),
    ],
)
def test_what_is_refused(work: Callable[[Path], Any], said: str, shards: Path):
    work(shards)
    with pytest.raises(ValueError, match=said):
        evaluation.merge(
            Merge(merge=tuple(shards / f"{number}.jsonl" for number in (1, 2, 3)), out=shards / "merged.jsonl")
        )
    assert not list(shards.glob("merged*"))


def test_outputs_and_missing_shards(shards: Path):
    first, out = shards / "1.jsonl", shards / "merged.jsonl"
    with pytest.raises(ValueError, match="name the files that all shards have written"):
        evaluation.merge(Merge(merge=(), out=out))
    with pytest.raises(ValueError, match="shard 2/3 is missing"):
        evaluation.merge(Merge(merge=(first, shards / "3.jsonl"), out=out))
    with pytest.raises(ValueError, match=r"1\.jsonl exists already"):
        evaluation.merge(Merge(merge=(first,), out=first))
    (shards / "merged.samples.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"merged\.samples\.jsonl exists already"):
        evaluation.merge(Merge(merge=tuple(shards / f"{number}.jsonl" for number in (1, 2, 3)), out=out))
    with pytest.raises(ValueError, match=r"--out must name a \.jsonl file"):
        evaluation.merge(Merge(merge=(first,), out=shards / "merged.json"))


def test_what_was_written_goes_where_the_rest_cannot_be(shards: Path, monkeypatch: pytest.MonkeyPatch):
    def write_whole(path: Path, content: str) -> None:
        if path.suffix == ".json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        path.write_text(content)

    monkeypatch.setattr(evaluation, "write_whole", write_whole)
    with pytest.raises(OSError, match="No space left"):
        evaluation.merge(
            Merge(merge=tuple(shards / f"{number}.jsonl" for number in (1, 2, 3)), out=shards / "merged.jsonl")
        )
    assert not list(shards.glob("merged*"))


def test_settings_of_a_machine_may_differ(shards: Path):
    """Paths, since hashes tell whether files are the same, and the device."""
    changed(lambda found: found.update(device="another") or found["settings"].update(target="/there"))(shards)
    evaluation.merge(
        Merge(merge=tuple(shards / f"{number}.jsonl" for number in (1, 2, 3)), out=shards / "merged.jsonl")
    )
    assert values(shards / "merged.jsonl")["device"].endswith(", another")


def test_measured_costs_of_a_machine_may_differ(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    asked = Eval(target=finished / "ckpt", prompts=finished / "sums.jsonl", limit=2)
    line = {"sample": 0, "turns": [{"tokens": [1, 2], "rounds": 1}], "quality": {}}
    monkeypatch.setattr(evaluation, "answered", lambda *given: [line | {"index": number} for number, _ in given[2]])

    def ask(number: int, seconds: float, method: str = "ngram+pruned") -> Path:
        """The answers of a shard on a machine where a drafted level takes so long."""
        table = CostTable(plain=1.0, verify=((1, 1.0),), level=((1, seconds),))
        monkeypatch.setattr("jaxspec.engine.engine.costs_of", lambda *_: table)
        out = tmp_path / f"{number}.jsonl"
        evaluation.run(dataclasses.replace(asked, method=method, out=out, shard=f"{number}/2"))
        return out

    parts = ask(1, 0.5), ask(2, 0.75)
    evaluation.merge(Merge(merge=parts, out=tmp_path / "merged.jsonl"))
    found = values(tmp_path / "merged.jsonl")
    assert "cost=measured" in found["settings"]["method"]
    assert "cost=0.5" in found["resolved"] and "cost=0.75" in found["resolved"]
    ask(1, 0.75)
    assert "answers of an earlier run: 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"method is .*cost=measured.* there and .*cost=0.5.* here"):
        ask(1, 0.75, "ngram+pruned,cost=0.5")


@pytest.mark.parametrize("typed", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_shards_that_are_none(typed: str):
    with pytest.raises(ValueError, match="--shard must be I/N"):
        parse_shard(typed)


def test_shards_split_the_questions():
    parts = [list(numbers_of(10, f"{number}/4")) for number in range(1, 5)]
    assert parts == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_too_many_shards_and_kept_state(finished: Path):
    asked = Eval(target=finished / "ckpt", prompts=finished / "sums.jsonl", shard="6/6")
    with pytest.raises(ValueError, match="--shard 6/6 splits 5 questions into more shards"):
        evaluation.run(asked)
    with pytest.raises(ValueError, match="leave out --shard"):
        evaluation.run(dataclasses.replace(asked, keep_state=True))
