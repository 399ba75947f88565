"""`jaxspec bench` from the prompt file to the JSON, killed runs included."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jaxspec.commands.bench import run
from jaxspec.decoding.request import SamplingParams
from jaxspec.decoding.rule import Rule
from jaxspec.evaluate import bench, comparison
from jaxspec.evaluate.settings import Bench, Compare
from jaxspec.methods.method import Method, parse_method
from jaxspec.report import page, runs
from jaxspec.rules.greedy import Greedy, follow
from tests.evaluate import tiny
from tests.report.rebuilt import Rebuilt

pytestmark = pytest.mark.usefixtures("little_to_compile_and_time")

METHOD = "ngram+chain,length=2"
TURNS, TOKENS = 3, 3 * 39  # in all; the first token of an answer is prefill's
# All prompts, that of the second turn too, have 33 to 64 tokens: one shape, so few compilations.
QUESTIONS = [
    {"turns": ["one two three four one two three four", "and?"], "question_id": 81, "category": "counting"},
    {"prompt": "a prompt that is as long as the first one", "source": "ignored", "answer": "it is"},
]
KEYS = {
    "resolved", "tokens", "rounds", "prefill_seconds", "decode_seconds", "tokens_per_second", "speedup", "tau",
    "tau_drafted", "acceptance_rate", "acceptance_by_position", "draft_accuracy", "draft_share", "harmonic_mean",
    "nodes_per_round", "nodes_drafted_per_round", "depth_per_round", "modelled_speedup", "flat_speedup",
    "predicted_seconds", "eq14_speedup", "draft_cost", "verify_cost", "breakdown", "divergences",
    "unexplained_divergences", "calibration", "expected_calibration_error", "tokens_per_second_mean",
    "tokens_per_second_deviation", "speedup_mean", "speedup_deviation", "categories", "quality", "gigabytes_per_second",
    "speedup_interval", "tau_interval", "tau_uncut", "against_fastest",
}  # fmt: skip
TIMED = {
    "prefill_seconds", "decode_seconds", "tokens_per_second", "speedup", "modelled_speedup", "predicted_seconds",
    "eq14_speedup", "draft_cost", "verify_cost", "breakdown", "tokens_per_second_mean", "tokens_per_second_deviation",
    "speedup_mean", "speedup_deviation", "categories", "gigabytes_per_second",
    "speedup_interval", "against_fastest",
}  # fmt: skip


def changed(command: Bench, **options: Any) -> Bench:
    """The command with other options, those of sampling among them."""
    drawn = {
        field.name: options.pop(field.name) for field in dataclasses.fields(SamplingParams) if field.name in options
    }
    return dataclasses.replace(command, sampling=dataclasses.replace(command.sampling, **drawn), **options)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that went to its end: the command, and where it wrote."""

    command: Bench
    out: Path

    def __call__(self, out: Path, **changes: Any) -> dict[str, Any]:
        """Runs the same command with another OUT, and whatever else is changed; returns the JSON."""
        run(changed(self.command, json=out, **changes))
        return json.loads(out.read_text(encoding="utf-8"))

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("bench")
    command = Bench(
        target=tiny.checkpoint(folder / "ckpt"),
        methods=(METHOD,),
        prompts=tiny.prompts(folder / "questions.jsonl", QUESTIONS),
        sampling=SamplingParams(max_new_tokens=40),
        repeats=2,
        json=folder / "out.json",
    )
    run(command)
    return Finished(command, folder / "out.json")


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{out}.jsonl").read_text(encoding="utf-8").splitlines()]


def untimed(results: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: value for key, value in values.items() if key not in TIMED}
        for name, values in results["methods"].items()
    }


def test_json_has_the_keys_that_are_promised(finished: Finished):
    found = finished.json
    about = {"device", "dtype", "versions", "settings", "weights", "noise"}
    pieces = ("target", "resumed", "level", "rest", "control_level", "control_round")
    seconds = {f"{piece}_seconds" for piece in pieces}
    assert found.keys() == {*about, *seconds, "methods"}
    assert list(found["methods"]) == ["plain", METHOD]
    assert all(values.keys() == KEYS for values in found["methods"].values())
    assert found["dtype"] == "float32"
    assert 0 < found["noise"] < 1e-3
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
    # Of two questions either may be drawn twice.
    rows = [
        [row for turn in answer["turns"] for row in turn["rounds"]] for answer in answers if answer["method"] == METHOD
    ]
    assert ours["tau_interval"] == pytest.approx(sorted(sum(row[0] for row in each) / len(each) for each in rows))
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
    """Its numbers, and those of bench's JSON, counted again from the log by other means."""
    log, (run,) = Rebuilt(finished.out), runs.read([finished.out])
    found = json.loads(json.dumps(run.found))
    assert found == finished.json
    for name in found["methods"]:
        again = log.of(name, None)
        for key, value in again.items():
            if isinstance(value, float | int):
                assert found["methods"][name][key] == pytest.approx(value, rel=1e-4), (name, key)
        assert found["methods"][name]["breakdown"] == pytest.approx(again["breakdown"])
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


def test_calibration_is_counted_from_the_trees(finished: Finished):
    """Again, without the library: a chain's drafts as far as the first rejection, or the end of the text."""
    plain, ours = finished.json["methods"].values()
    found = []
    for answer in lines(finished.out)[1:-1]:
        for turn in answer["turns"] if answer["method"] == METHOD else ():
            for tree in turn["trees"]:
                accepted = sum(tree["accepted"]) - 1
                judged = min(len(tree["token"]) - 1, len(tree["committed"]))  # a whole round commits accepted + 1
                log = tree["log_confidence"]
                found += [(math.exp(log[i] - log[i - 1]), i <= accepted) for i in range(1, judged + 1)]
    assert sum(each["count"] for each in ours["calibration"]) == len(found) > 20
    error = 0.0
    for at, each in enumerate(ours["calibration"]):
        inside = [(c, a) for c, a in found if at / 10 < c <= (at + 1) / 10]
        assert each["count"] == len(inside)
        if inside:
            assert each["confidence"] == pytest.approx(sum(c for c, _ in inside) / len(inside))
            assert each["accepted"] == pytest.approx(sum(a for _, a in inside) / len(inside))
            error += abs(sum(c - a for c, a in inside)) / len(found)
    assert ours["expected_calibration_error"] == pytest.approx(error)
    assert plain["expected_calibration_error"] is None
    assert plain["calibration"] == [{"confidence": None, "accepted": None, "count": 0}] * 10


def test_a_log_without_calibration_is_read(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Earlier versions wrote trees only: it is counted from those."""
    found = lines(finished.out)
    for turn in (turn for line in found if "question" in line for turn in line["turns"]):
        del turn["calibration"]
    (tmp_path / "out.json.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
    monkeypatch.setattr(bench.runner, "run_batch", None)
    assert untimed(finished(tmp_path / "out.json")) == untimed(finished.json)


def test_a_second_turn_follows_the_first_answer(finished: Finished):
    _, plain, ours, *_ = lines(finished.out)
    first, second = plain["turns"]
    assert len(second["prompt"]) > len(first["prompt"]) + len("and then")
    assert [turn["prompt"] for turn in ours["turns"]] == [first["prompt"], second["prompt"]]
    assert second["prompt"][: len(first["prompt"])] == first["prompt"]


class Killed(BaseException):
    """Instead of a signal."""


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
    kept = {"methods": (method,), "keep_state": True}
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


@pytest.mark.parametrize("text", ["not json\n", "[1]\n", '{"a": 1}\n'])
def test_a_file_that_is_no_log_is_refused_and_kept(text: str, finished: Finished, tmp_path: Path):
    log = tmp_path / "out.json.jsonl"
    log.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"out\.json\.jsonl is not the log of a bench run"):
        finished(tmp_path / "out.json")
    assert log.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": ()}, "name at least one method"),
        ({"methods": ("nonsense",)}, "there is no drafter 'nonsense'"),
        ({"methods": ("draft-model",)}, "no head 'draft-model'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"shots": 2}, "2 shots need as many questions with a worked answer"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must be 0 or above"),
        ({"max_new_tokens": 120}, r"question 0 \(81\) needs up to \d+ positions .* and the model has 256"),
        ({"json": Path("/nowhere/out.json")}, "there is no folder /nowhere"),
        ({"json": Path("out.jsonl")}, r"--json names a file of JSON, such as out\.json"),
        ({"json": Path("out.json"), "report": Path("/nowhere/r.html")}, "there is no folder /nowhere"),
        ({"temperatures": (0.0, -1.0)}, "temperature must be 0 or above, not -1"),
        ({"batch_sizes": (1, 0)}, "batch_size must be at least 1, not 0"),
        ({"simulate": "acceptance=1", "temperatures": (0.0, 1.0)}, "temperature has no meaning"),
        ({"prompts": Path("/nowhere.jsonl")}, "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(changes: dict, says: str, finished: Finished, monkeypatch):
    monkeypatch.setattr(bench.runner, "run_batch", None)
    with pytest.raises(ValueError, match=says):
        run(changed(finished.command, **{"json": None, **changes}))


def test_sampled_texts_with_a_chat_template(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture):
    sampled = {"methods": ("plain",), "temperature": 0.8, "chat": True, "repeats": 1}
    found = finished(tmp_path / "out.json", **sampled)["methods"]["plain"]
    assert found["divergences"] is found["unexplained_divergences"] is None
    printed = capsys.readouterr()
    assert "Sampled texts differ by design" in printed.out
    _, plain, *_ = lines(tmp_path / "out.json")
    # One token a byte, so the templated prompt's length tells that it was templated, once.
    assert len(plain["turns"][0]["prompt"]) == len("<user><assistant>" + QUESTIONS[0]["turns"][0])


def test_methods_named_beside_all_run_too(finished: Finished, monkeypatch, capsys: pytest.CaptureFixture):
    """And a folder that is no head of ours is left out, with a word about it."""
    folder = finished.command.target / "heads" / "theirs"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")

    def build(settings: Bench, methods: dict[str, Method], mesh: None, shape: None):
        raise Killed(*methods)

    monkeypatch.setattr(bench, "build", build)
    command = dataclasses.replace(finished.command, methods=("all", "ngram+chain,length=7"), json=None)
    with pytest.raises(Killed) as built:
        run(command)
    shutil.rmtree(folder.parent)
    assert built.value.args[-1] == "ngram+chain,length=7" and "ngram+chain,length=5" in built.value.args
    said = " ".join(capsys.readouterr().err.split())
    assert "all leaves out the head theirs: " in said and "is not the config of a trained head" in said


def test_conditions_are_runs_of_their_own(finished: Finished):
    several = dataclasses.replace(finished.command, temperatures=(0.0, 0.8), batch_sizes=(1, 4))
    each = bench.conditions(several)
    assert [(one.sampling.temperature, one.batch_size) for one in each] == [(0.0, 1), (0.0, 4), (0.8, 1), (0.8, 4)]
    assert [one.json and one.json.name for one in each] == [
        *("out.json", "out.t0.b4.json", "out.t0.8.b1.json", "out.t0.8.b4.json"),
    ]
    assert bench.conditions(finished.command) == [finished.command]
    with pytest.raises(ValueError, match=r"--report needs --json OUT\.json"):
        run(dataclasses.replace(finished.command, json=None, report=Path("x.html")))


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


class Broken(Method):
    """A method with a rule that does not fit it."""

    def rule(self, greedy: bool):
        return Contrary()


def test_a_lossy_rule_is_found_out(finished: Finished, monkeypatch, capsys: pytest.CaptureFixture, tmp_path: Path):
    def parse(text: str) -> Method:
        method = parse_method(text)
        return method if text == "plain" else Broken(method.drafter, method.builder, method.controller)

    monkeypatch.setattr(bench, "parse_method", parse)
    found = finished(tmp_path / "out.json", repeats=1, limit=1)["methods"][METHOD]
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
    ]
    assert next(line for line in printed if line.startswith("drafts per round")).split()[3:] == [
        *("drafted", "verified", "depth", "ECE"),
    ]
    said = " ".join(" ".join(printed).split())
    assert "Verifying n tokens, in s_t: 1: 1.00" in said
    assert f"One drafted level, in s_t: {METHOD}: " in said
    seconds = r"\d+\.\d+ s, predicted \d+\.\d+ s \([+-]\d+%(, too far to trust)?\); "
    shares = r"drafting {}, verification \d+ %, control 0 %, other -?\d+ %"
    assert re.search(f"plain: {seconds}{shares.format('0 %')}", said)
    assert re.search(f"{re.escape(METHOD)}: {seconds}{shares.format('[0-9]+ %')}", said)
    assert re.search(rf"Fastest: (plain decoding\. The best method that drafts is )?{re.escape(METHOD)}, \d", said)
    assert "modelled, not measured" in said
