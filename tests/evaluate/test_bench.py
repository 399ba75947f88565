"""`jaxspec bench` from the prompt file to the JSON, the table and the page."""

import dataclasses
import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from jaxspec.decoding.rule import Rule
from jaxspec.evaluate import bench, comparison, table
from jaxspec.evaluate.simulate import MethodWithRule
from jaxspec.methods.method import Method, parse_method
from jaxspec.options.by_command import Compare
from jaxspec.options.shared import ChatOptions
from jaxspec.report import page, runs
from jaxspec.rules.greedy import Greedy, follow
from tests.evaluate.finished_bench import KEYS, METHOD, QUESTIONS, TOKENS, TURNS, Finished, lines, untimed

pytestmark = pytest.mark.usefixtures("quick_runs")


def test_json_has_the_keys_that_are_promised(finished: Finished):
    found = finished.json
    about = {"device", "dtype", "versions", "settings", "weights", "noise"}
    pieces = ("target", "resumed", "level", "rest", "control_level", "control_round")
    seconds = {f"{piece}_seconds" for piece in pieces}
    assert found.keys() == {*about, *seconds, "methods"}
    assert list(found["methods"]) == ["plain", METHOD]
    assert all(values.keys() == KEYS for values in found["methods"].values())
    assert found["dtype"] == "float32"
    assert found["noise"] is None  # no text differs
    assert found["settings"]["max_new_tokens"] == 40
    assert found["settings"]["questions"] == 2


def test_numbers_follow_from_the_log(finished: Finished):
    """Recounted from the lines, by other means than the library's."""
    plain, ours = finished.json["methods"].values()
    _, *answers, _ = lines(finished.out)
    turns = [turn for answer in answers if answer["method"] == METHOD for turn in answer["turns"]]
    rounds = [row for turn in turns for row in turn["rounds"]]
    assert len(turns) == TURNS
    assert plain["tokens"] == plain["rounds"] == ours["tokens"] == sum(row[0] for row in rounds) == TOKENS
    assert plain["tau"] == plain["speedup"] == 1
    assert plain["modelled_speedup"] == pytest.approx(1)
    assert ours["rounds"] == len(rounds) < TOKENS
    assert ours["tau"] == pytest.approx(TOKENS / len(rounds))
    assert ours["tau_drafted"] == pytest.approx(sum(row[1] for row in rounds) / len(rounds))
    assert sum(ours["breakdown"].values()) == pytest.approx(ours["decode_seconds"])
    assert ours["resolved"] == str(parse_method(METHOD))
    assert ours["divergences"] == []
    assert ours["unexplained_divergences"] == 0
    # The median of two repeats is their mean.
    assert ours["decode_seconds"] == pytest.approx(sum(sum(turn["decode_seconds"]) / 2 for turn in turns))
    assert ours["tokens_per_second"] == pytest.approx(TOKENS / ours["decode_seconds"])
    assert ours["speedup"] == pytest.approx(plain["decode_seconds"] / ours["decode_seconds"])
    low, high = ours["tau_interval"]
    assert low <= ours["tau"] <= high
    assert ours["tau_uncut"] == sum(row[5] for row in rounds) / len(rounds) >= ours["tau"]
    low, high = ours["speedup_interval"]
    assert low <= ours["speedup"] <= high and plain["speedup_interval"] == plain["tau_interval"] == [1, 1]


def test_a_run_without_prices(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Nothing is timed but decoding; table, page and comparison do without."""
    out = tmp_path / "out.json"
    found = finished(out, prices=False, report=tmp_path / "page.html")
    plain, ours = found["methods"].values()
    priced = ("modelled_speedup", "predicted_seconds", "eq14_speedup", "draft_cost", "verify_cost", "breakdown")
    assert all(values[key] is None for values in (plain, ours) for key in priced)
    assert all(value is None for key, value in found.items() if key.endswith("_seconds"))
    assert ours.keys() == KEYS and ours["flat_speedup"] > 0 and ours["speedup"] > 0
    assert untimed(found) == untimed(finished.json)
    assert "predicted" not in capsys.readouterr().out
    assert "Where the time goes" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    comparison.run(Compare(compare=(finished.out, out)))
    assert "prices: True → False" in capsys.readouterr().out


def test_categories_and_repeats(finished: Finished):
    plain, ours = finished.json["methods"].values()
    assert list(ours["categories"]) == ["counting", ""]  # the second question has none
    assert [each["questions"] for each in ours["categories"].values()] == [1, 1]
    assert sum(each["tokens"] for each in ours["categories"].values()) == TOKENS
    assert sum(each["decode_seconds"] for each in ours["categories"].values()) == pytest.approx(ours["decode_seconds"])
    assert ours["tokens_per_second_deviation"] > 0 and ours["quality"] is None
    assert (plain["speedup_mean"], plain["speedup_deviation"]) == (1, 0)


def test_a_page_of_the_run(finished: Finished):
    """The log alone gives bench's JSON."""
    (run,) = runs.read([finished.out])
    assert json.loads(json.dumps(run.found)) == finished.json
    assert "texts changed" in page.render([run])
    (turn, *_) = run.turns(METHOD)
    assert turn.asked == QUESTIONS[0]["turns"][0]
    assert "".join(turn.pieces) == turn.text


def test_log_holds_trees_and_verdicts(finished: Finished):
    settings, *answers, measured = lines(finished.out)
    assert settings.keys() == {"settings"} and measured.keys() == {"measured"}
    assert [answer["question"] for answer in answers] == [0, 0, 1, 1]
    assert (answers[0]["question_id"], answers[0]["category"]) == (81, "counting")
    for answer in answers:
        for turn in answer["turns"]:
            text = turn["tokens"][:1]
            for row, tree in zip(turn["rounds"], turn["trees"], strict=True):
                assert len(tree["token"]) == row[4] + 1
                assert (tree["parent"][0], tree["accepted"][0]) == (-1, 1)
                assert len(tree["committed"]) == row[0]
                text += tree["committed"]
            assert text == turn["tokens"]


def test_sampled_texts_with_a_chat_template(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture):
    sampled = {"methods": ("plain",), "temperature": 0.8, "chat": True, "repeats": 1, "prices": False}
    sampled |= {"template": ChatOptions(system="be")}
    found = finished(tmp_path / "out.json", **sampled)["methods"]["plain"]
    assert found["divergences"] is found["unexplained_divergences"] is None
    printed = capsys.readouterr()
    assert "Sampled texts differ by design" in printed.out
    _, plain, *_ = lines(tmp_path / "out.json")
    # One token a byte, so the templated prompt's length tells that it was templated, once.
    assert len(plain["turns"][0]["prompt"]) == len("<system>be<user><assistant>" + QUESTIONS[0]["turns"][0])


def test_a_simulated_run(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture):
    simulated = {"simulate": "acceptance=1,0", "methods": ("draft-model+chain,length=2",), "limit": 1, "repeats": 1}
    found = finished(tmp_path / "out.json", **simulated)
    ours = found["methods"]["draft-model+chain,length=2"]
    assert found["simulated"] is True
    assert ours["acceptance_by_position"][0] == 1 and ours["acceptance_by_position"][1] == 0
    assert ours["divergences"] is ours["unexplained_divergences"] is found["noise"] is None
    printed = capsys.readouterr()
    assert "simulated: random weights" in printed.out
    assert "simulated: batch 1 of 1" in printed.err
    rows = [line for line in printed.out.splitlines() if re.search(r"\d\.\d\d .*\d\.\d\d", line)]
    assert len(rows) > 2 and all("simulated" in line or "s_t" in line for line in rows if "plain" in line)
    with pytest.raises(ValueError, match="temperature has no meaning"):
        finished(tmp_path / "hot.json", **simulated, temperature=0.5)


@dataclasses.dataclass(frozen=True)
class Contrary(Rule):
    """Verifies by what the target likes least: lossy."""

    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def propose(self, draws, drafts, width, count):
        return Greedy().propose(draws, drafts, width, count)

    def verify(self, draws, tree, logits, depth):
        return follow(tree, logits.argmin(axis=-1).astype(int), depth)


def test_a_lossy_rule_is_found_out(finished: Finished, monkeypatch, capsys: pytest.CaptureFixture, tmp_path: Path):
    def parse(text: str) -> Method:
        return (
            parse_method(text)
            if text == "plain"
            else MethodWithRule(**vars(parse_method(text)), verification=Contrary())
        )

    monkeypatch.setattr(bench, "parse_method", parse)
    run = finished(tmp_path / "out.json", repeats=1, limit=1, prices=False)
    found = run["methods"][METHOD]
    assert 0 < run["noise"] < 1e-3
    assert found["unexplained_divergences"] == len(found["divergences"]) == 2
    first = found["divergences"][0]
    assert (first["prompt"], first["turn"], first["position"]) == (0, 0, 1)  # prefill's token is the target's own
    assert first["behind"] > first["gap"] > 0
    assert "it is not lossless here" in capsys.readouterr().out.replace("\n", " ")


def test_table_fits_a_narrow_page(finished: Finished, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setenv("COLUMNS", "80")
    finished(finished.out)
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    assert [line.split()[0] for line in printed if " 1.00 1.00 " in line or line.startswith(METHOD)] == [
        "plain",
        METHOD,
        METHOD,  # its intervals
        METHOD,  # what it drafts; plain drafts nothing
        METHOD,  # what was accepted at each position
    ]
    assert next(line for line in printed if line.startswith("drafts per round")).split()[3:] == [
        *("drafted", "verified", "depth", "ECE"),
    ]
    said = " ".join(" ".join(printed).split())
    assert "Verifying n tokens, in s_t: 1: 1.00" in said
    assert f"One drafted level, in s_t: {METHOD}: " in said
    seconds = r"\d+\.\d+ s, predicted \d+\.\d+ s \([+-]\d+%\); "
    shares = r"(drafting {}, verification \d+ %, control 0 %, other -?\d+ %|too far apart for shares)"
    assert re.search(f"plain: {seconds}{shares.format('0 %')}", said)
    assert re.search(f"{re.escape(METHOD)}: {seconds}{shares.format('[0-9]+ %')}", said)
    assert re.search(rf"Fastest: (plain decoding\. The best method that drafts is )?{re.escape(METHOD)}, \d", said)
    assert "modelled, not measured" in said


@pytest.mark.parametrize(("factor", "says"), [(1.0, "verification"), (2.0, "too far apart for shares")])
def test_shares_are_printed_if_the_prediction_is_close(
    factor: float, says: str, finished: Finished, capsys: pytest.CaptureFixture
):
    methods = {
        name: {**values, "predicted_seconds": factor * values["decode_seconds"]}
        for name, values in finished.json["methods"].items()
    }
    table.show(methods, finished.json["target_seconds"], Console(width=200))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  plain: "))
    assert says in line
