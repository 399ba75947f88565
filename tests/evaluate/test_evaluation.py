"""`jaxspec eval`: answers are those of `generate`, they are scored, and a killed run resumes."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxspec import Engine, load
from jaxspec.decoding.request import SamplingParams
from jaxspec.evaluate import evaluation
from jaxspec.host.json_lines import to_line
from jaxspec.options.by_command import Eval
from jaxspec.options.shared import ChatOptions
from tests.evaluate import tiny

METHOD = "ngram+chain,length=2"
QUESTIONS = [
    {"question_id": "a", "prompt": "abcabc"},
    {"question_id": "b", "turns": ["the first", "and another", "the last"]},
    {"question_id": "c", "prompt": "x y z"},
    {"question_id": "d", "turns": ["one", "two", "three"]},
    {"question_id": "e", "prompt": "again and again"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(tiny.checkpoint(tmp_path_factory.mktemp("eval") / "ckpt"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return written(tmp_path / "questions.jsonl", QUESTIONS)


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def settings(model: Any, prompts: Path, **more: Any) -> Eval:
    sampling = more.pop("sampling", SamplingParams(max_new_tokens=12))
    given: dict[str, Any] = {"method": METHOD, "batch_size": 2, "dtype": "float32", **more}
    return Eval(target=model.path, prompts=prompts, sampling=sampling, **given)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def answers(out: Path) -> dict[tuple[str, int], list[str]]:
    return {(line["question_id"], line["sample"]): [turn["text"] for turn in line["turns"]] for line in lines(out)}


def results(out: Path) -> dict[str, Any]:
    return json.loads(out.with_suffix(".json").read_text())


def test_samples_of_others_stay(model, prompts, tmp_path):
    (tmp_path / "out.samples.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"out.samples.jsonl exists already, and out.jsonl, "):
        evaluation.check(settings(model, prompts, out=tmp_path / "out.jsonl"))


def test_every_turn_is_what_generate_gives(model, prompts, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    evaluation.run(settings(model, prompts, out=out))
    found, texts = answers(out), {}
    assert {name for name, _ in found} == set("abcde")
    for question in QUESTIONS:
        text = ""
        said = question.get("turns") or [question["prompt"]]
        for asked, answer in zip(said, found[question["question_id"], 0], strict=True):
            text += f"\n{asked}" if text else asked
            texts[text] = answer
            text += answer
    generated = Engine(model, METHOD).generate([*texts], max_new_tokens=12, batch_size=2)
    assert [each.text for each in generated] == [*texts.values()]
    found = results(out)
    assert found["answers"] == 5 and found["tokens"] == found["timed_tokens"] > 5 * 12
    assert found["tau"] >= 1 and found["tokens_per_second"] > 0 and found["left_out"] == 0
    assert [line["index"] for line in lines(out)] == list(range(5))
    assert set(lines(out)[0]) == {"index", "sample", "question_id", "turns", "quality"}
    assert set(lines(out)[0]["turns"][0]) == {"tokens", "text", "finish_reason", "rounds"}
    assert "tau: " in capsys.readouterr().out


def test_earlier_answers_are_messages_after_the_system_prompt(model, prompts, tmp_path):
    out, chat = tmp_path / "out.jsonl", {"chat": True, "template": ChatOptions(system="be brief")}
    evaluation.run(settings(model, prompts, out=out, limit=2, method="plain", **chat))
    messages = []
    for question, said in zip(QUESTIONS[1]["turns"], answers(out)["b", 0], strict=True):
        messages += [{"role": "user", "content": question}]
        (found,) = Engine(model, "plain").generate([messages], chat=True, system="be brief", max_new_tokens=12)
        assert found.text == said
        messages += [{"role": "assistant", "content": said}]
    assert results(out)["settings"]["system"] == "be brief"


def test_a_killed_run_goes_on(model, prompts, tmp_path, capsys):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    evaluation.run(settings(model, prompts, out=whole))
    kept = whole.read_text().splitlines(keepends=True)
    about = {"settings": results(whole)["settings"]}
    for count, batch_size in ((0, 2), (1, 2), (4, 3)):
        out.write_text("".join(kept[:count]) + kept[count][:-9])  # the next line was torn
        out.with_suffix(".json").write_text(json.dumps(about))
        evaluation.run(settings(model, prompts, out=out, batch_size=batch_size))
        assert out.read_bytes() == whole.read_bytes()
        assert (results(out)["timed_tokens"] < results(out)["tokens"]) == (count > 0)
    assert "answers of an earlier run: 4" in capsys.readouterr().err
    before = results(out)
    evaluation.run(settings(model, prompts, out=out))  # nothing is left, so the measured speed stays
    assert results(out) == before
    with pytest.raises(ValueError, match="belongs to a run with other settings"):
        evaluation.run(settings(model, prompts, out=out, sampling=SamplingParams(max_new_tokens=13)))
    out.write_text("{}\n")
    for _ in range(2):  # the second time, only the file beside it is there
        with pytest.raises(ValueError, match="are not results of `jaxspec eval`"):
            evaluation.run(settings(model, prompts, out=out))
        out.unlink(missing_ok=True)
        out.with_suffix(".json").write_text('{"mine": 1}')
    assert out.with_suffix(".json").read_text() == '{"mine": 1}'


@pytest.mark.parametrize(
    "change",
    [
        lambda first, *others: (first, *others, first),
        lambda first, *others: (first | {"index": 99}, *others),
        lambda first, *others: (first | {"index": "0"}, *others),
        lambda first, *others: (first | {"turns": None}, *others),
        lambda first, *others: (first | {"turns": [{"text": ""}]}, *others),
        lambda first, *others: ({key: first[key] for key in first if key != "quality"}, *others),
    ],
)
def test_answers_that_were_changed_are_refused_and_kept(change, model, prompts, tmp_path, monkeypatch):
    out, asked = tmp_path / "out.jsonl", settings(model, prompts, out=tmp_path / "out.jsonl", method="plain", limit=3)
    line = {"sample": 0, "turns": [{"tokens": [1, 2], "rounds": 1}], "quality": {}}
    monkeypatch.setattr(evaluation, "answered", lambda *given: [line | {"index": number} for number, _ in given[2]])
    evaluation.run(asked)
    out.write_text(text := "".join(map(to_line, change(*lines(out)))))
    with pytest.raises(ValueError, match=r"out\.jsonl (was changed|and out\.json beside it are not results)"):
        evaluation.run(asked)
    assert out.read_text() == text


def test_kept_state_is_not_resumed(model, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    asked = settings(model, prompts, method="plain", keep_state=True, out=out)
    evaluation.run(asked)
    evaluation.run(asked)  # nothing is left
    whole = out.read_text().splitlines(keepends=True)
    out.write_text("".join(whole[:2]))
    with pytest.raises(ValueError, match="with --keep-state further answers depend on"):
        evaluation.run(asked)
    assert out.read_text() == "".join(whole[:2])


def test_several_samples(model, prompts, tmp_path):
    out, sampling = tmp_path / "out.jsonl", SamplingParams(max_new_tokens=12, temperature=1.0, seed=3)
    evaluation.run(settings(model, prompts, out=out, samples=3, sampling=sampling, limit=3))
    found = answers(out)
    assert len(found) == 9 and len({tuple(found["a", sample]) for sample in range(3)}) > 1
    drawn = Engine(model, METHOD).generate(["abcabc"] * 3, batch_size=2, max_new_tokens=12, temperature=1.0, seed=3)
    assert [found["a", sample][0] for sample in range(3)] == [each.text for each in drawn]


def test_scores_and_files_for_scorers(model, tmp_path, capsys):
    sums = [{"question": f"{i} + {i}?", "answer": f"They are {2 * i}.\n#### {2 * i}"} for i in range(3)]
    out = tmp_path / "sums.out.jsonl"
    evaluation.run(settings(model, written(tmp_path / "sums.jsonl", sums), out=out, shots=1))
    assert all(line["quality"].keys() == {"exact_match", "exact_match_flexible"} for line in lines(out))
    assert 0 <= results(out)["quality"]["exact_match"] <= 1
    code = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n", "entry_point": f"f{i}"} for i in range(2)]
    out = tmp_path / "code.out.jsonl"
    evaluation.run(settings(model, written(tmp_path / "code.jsonl", code), out=out))
    samples = [json.loads(line) for line in (tmp_path / "code.out.samples.jsonl").read_text().splitlines()]
    assert {sample["task_id"] for sample in samples} == {"HumanEval/0", "HumanEval/1"}
    capsys.readouterr()
    evaluation.run(settings(model, written(tmp_path / "mixed.jsonl", [*code, *sums]), out=tmp_path / "mixed.out.jsonl"))
    assert "several formats, so no file for a scorer of code is written" in capsys.readouterr().err
    assert not (tmp_path / "mixed.out.samples.jsonl").exists()
    again = written(tmp_path / "code.jsonl", [{**each, "task_id": "HumanEval/9"} for each in code])
    with pytest.raises(ValueError, match=r"questions_sha256 is \w+ there"):
        evaluation.run(settings(model, again, out=out))
    out.with_suffix(".json").write_text('{"settings": [1]}')
    with pytest.raises(ValueError, match="are not results of `jaxspec eval`"):
        evaluation.run(settings(model, again, out=out))


def test_what_is_summed_and_printed(capsys):
    """Two answers of this run and one of an earlier run; the first token of each text is no round's."""
    said = lambda tokens, rounds: {"tokens": [0] * tokens, "rounds": rounds}
    kept = [
        {"turns": [said(9, 4), said(5, 2)], "quality": {"exact_match": 1.0, "exact_match_flexible": 1.0}},
        {"turns": [said(7, 2)], "quality": {"exact_match": 0.0, "exact_match_flexible": 1.0}},
        {"turns": [said(4, 1)], "quality": {}},
    ]
    found = evaluation.summary(kept, kept[1:], 2.0)
    assert found == {
        "answers": 3,
        "tokens": 25,
        "tau": 21 / 9,
        "timed_tokens": 11,
        "seconds": 2.0,
        "tokens_per_second": 5.5,
        "quality": {"exact_match": 0.5, "exact_match_flexible": 1.0},
    }
    evaluation.show(found)
    assert capsys.readouterr().out.splitlines() == [
        "answers: 3",
        "tokens: 25",
        "tau: 2.33",
        "tokens/s, with prefill and compilation: 5.5",
        "exact_match: 0.500",
        "exact_match_flexible: 1.000",
    ]


def test_a_question_that_is_too_long(model, tmp_path, capsys):
    prompts = written(tmp_path / "long.jsonl", [*QUESTIONS[:1], {"question_id": "long", "prompt": "x" * 400}])
    with pytest.raises(ValueError, match=r"question 1 \(long\) needs up to \d+ positions"):
        evaluation.run(settings(model, prompts))
    out = tmp_path / "out.jsonl"
    evaluation.run(settings(model, prompts, out=out, skip_long=True))
    assert "left out: question 1 (long) needs" in capsys.readouterr().err
    assert results(out)["left_out"] == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"samples": 2}, "at temperature 0 all answers"),
        ({"out": Path("answers.json")}, "--out must name a .jsonl file, such as answers.jsonl"),
    ],
)
def test_wrong_settings(more: dict[str, Any], said: str, model, prompts):
    with pytest.raises(ValueError, match=said):
        evaluation.run(settings(model, prompts, **more))
