"""`bench`'s log: killed runs resume from it, and what is no log of theirs is refused."""

import shutil
from pathlib import Path

import pytest

from jaxspec.evaluate import bench
from jaxspec.host.json_lines import to_line
from tests.evaluate.finished_bench import Finished, Killed, lines, untimed

pytestmark = pytest.mark.usefixtures("quick_runs")


def test_a_killed_run_resumes(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out.json"
    real, asked = bench.runner.run_batch, []

    def killed_at(last: int):
        def run_batch(plan, engines, batch, numbers, before):
            if batch == last:
                raise Killed
            asked.append(batch)
            return real(plan, engines, batch, numbers, before)

        return run_batch

    monkeypatch.setattr(bench.runner, "run_batch", killed_at(1))
    with pytest.raises(Killed):
        finished(out)
    assert not out.exists()
    assert len(lines(out)) == 1 + 2  # question 0, by two methods

    # Killed again while it wrote the second question: one method's line is whole, the next one torn.
    whole = Path(f"{finished.out}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path(f"{out}.jsonl").write_text("".join(whole[:4]) + whole[4][: len(whole[4]) // 2], encoding="utf-8")
    monkeypatch.setattr(bench.runner, "run_batch", killed_at(-1))
    assert untimed(finished(out)) == untimed(finished.json)
    assert asked == [0, 1]  # the first before the kill, the second after it

    # Complete: reported again from the log alone, the same to the last digit.
    out.unlink()
    monkeypatch.setattr(bench.runner, "run_batch", killed_at(0))
    monkeypatch.setattr(bench, "measure", killed_at(0))
    again = finished(out)
    monkeypatch.undo()
    assert untimed(again) == untimed(finished.json)
    assert sorted(tmp_path.iterdir()) == [out, Path(f"{out}.jsonl")]  # and no temporary file


def test_controllers_go_on_where_they_were(finished: Finished, tmp_path: Path):
    """A state of their own for each pass, over turns and questions; from the log where the run was killed."""
    method, prior = "ngram+chain,length=2+beta-ts", [3.0, 1.0]
    kept = {"methods": (method,), "keep_state": True, "prices": False}
    finished(tmp_path / "out.json", **kept)
    _, _, first, _, second, _ = lines(tmp_path / "out.json")  # the others are settings, plain, and measurements
    alpha, beta = prior
    for turn in [*first["turns"], *second["turns"]]:
        assert turn["trees"] is not None, "the trees of a pass are kept with it"
        for _, accepted, depth, *_ in turn["rounds"]:
            alpha, beta = alpha + accepted, beta + min(accepted + 1, depth) - accepted
        assert turn["learnt"] == [[alpha, beta]] * 2
    assert alpha + beta > sum(prior) + 20, "hardly anything was learnt, so nothing was tested"

    log = tmp_path / "killed.json.jsonl"
    log.write_text("".join(Path(f"{tmp_path / 'out.json'}.jsonl").read_text().splitlines(keepends=True)[:3]))
    finished(tmp_path / "killed.json", **kept)
    *_, resumed, _ = lines(tmp_path / "killed.json")
    same = ("tokens", "rounds", "trees", "learnt")
    for ours, theirs in zip(resumed["turns"], second["turns"], strict=True):
        assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_new_tokens": 41}, r"other settings \(max_new_tokens is 40 there and 41 here\)"),
        ({"methods": ("ngram",)}, r"other settings \(methods is "),
        ({"shots": 1}, r"other settings \(shots is 0 there and 1 here"),
    ],
)
def test_another_runs_log_is_refused(changes: dict, says: str, finished: Finished, tmp_path: Path):
    shutil.copy(f"{finished.out}.jsonl", tmp_path / "out.json.jsonl")
    with pytest.raises(ValueError, match=says):
        finished(tmp_path / "out.json", **changes)


@pytest.mark.parametrize(
    "change", [{"batch": None}, {"batch": 9}, {"batch": "0"}, {"turns": None}, {"turns": [{}]}, {"more": 1}]
)
def test_a_log_that_was_changed_is_refused_and_kept(change: dict, finished: Finished, tmp_path: Path):
    begin, first, *others = lines(finished.out)
    log, changed = tmp_path / "out.json.jsonl", [begin, first | change, *others]
    log.write_text(text := "".join(map(to_line, changed)), encoding="utf-8")
    if change.get("batch", 0) is None:
        log.write_text(text := text.replace('"batch":null,', ""), encoding="utf-8")
    with pytest.raises(ValueError, match=r"out\.json\.jsonl is not complete, was changed, .*; delete it and run"):
        finished(tmp_path / "out.json")
    assert log.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["not json\n", "not json, and no line", "[1]\n", '{"a": 1}\n'])
def test_a_file_that_is_no_log_is_refused_and_kept(text: str, finished: Finished, tmp_path: Path):
    log = tmp_path / "out.json.jsonl"
    log.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"out\.json\.jsonl is not the log of a bench run"):
        finished(tmp_path / "out.json")
    assert log.read_text(encoding="utf-8") == text
