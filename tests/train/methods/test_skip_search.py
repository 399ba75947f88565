"""`jaxspec-train skip-search`: the objective of a set, the log from which a killed search resumes, and the output."""

import json
import re
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

import jaxspec
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs.timing import PieceCosts
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.round_records import from_rows
from jaxspec.drafters.layer_skip import SkipMask, layers_of, skip
from jaxspec.engine.generation import Generation
from jaxspec.host.json_lines import LineLog
from jaxspec.methods.method import parse_method
from jaxspec.train.decoding_options import SkipSearch
from jaxspec.train.methods import skip_search
from jaxspec.train.methods.skip_search import BlockCosts, Trial, read_skip_set, strategies
from tests import loops
from tests.evaluate import tiny
from tests.train.command import command

LAYERS, TRIALS = 2, 13  # past the first fit
COSTS = BlockCosts(
    plain=1.0, verify={1: 1.0, 2: 1.2, 4: 1.5}, level=0.9, attention=0.4, mlp=0.05,
    control_level=0.01, control_round=0.02, rest=0.0, plain_rest=0.0,
)  # fmt: skip
METHOD = "+chain,length=3+threshold,gamma=0.005"
SMALL = ("--samples", 2, "--prompt-tokens", 6, "--max-new-tokens", 12, "--method", f"layer-skip{METHOD}")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    (folder / "text").mkdir()
    for i in range(3):
        (folder / "text" / f"{i}.txt").write_text("".join(f"line {n} of {i}: abc abd\n" for n in range(50)))
    return tiny.checkpoint(folder / "ckpt", num_layers=LAYERS)


@pytest.fixture(scope="module")
def model(target) -> Checkpoint:
    return load(target, "float32")


@pytest.fixture
def known_costs(monkeypatch):
    """Costs that were measured before: measuring takes a minute."""
    monkeypatch.setattr(skip_search, "measure_costs", lambda *arguments: COSTS)


def run(target: Path, out: Path, trials: int = TRIALS, *options: Any) -> tuple[int, str]:
    text = target.parent / "text"
    return command(
        "skip-search", "--target", target, "--data", text, "--trials", trials, "--out", out, *SMALL, *options
    )


def test_searches_resumes_and_ends_with_the_same_set(target, model, known_costs, tmp_path, capsys):
    loops.forget()
    code, said = run(target, whole := tmp_path / "whole")
    assert code == 0, said
    assert loops.count() == 1, "every set must run in one program"
    log = (tmp_path / "whole.run/trials.jsonl").read_text().splitlines(keepends=True)
    assert len(log) == 2 + TRIALS  # settings and costs first
    lines = [json.loads(line) for line in log[2:]]
    assert lines[0]["attention"] == lines[0]["mlp"] == [] and lines[0]["acceptance_rate"] == 1
    best = max(lines, key=lambda line: line["speedup"])
    assert best["attention"], "attention is dear and does little here"
    assert layers_of(read_skip_set(whole, model.config)) == {name: best[name] for name in ("attention", "mlp")}
    assert f"wrote {whole}: {best['speedup']:.3f}x plain" in said
    table = capsys.readouterr().out
    for word in ("searched", "first", "middle", "last", "random", "uniform", "acceptance"):
        assert word in table
    assert table.splitlines()[-1].split()[0] == str(TRIALS), "how the search went on comes last"
    assert table.splitlines()[-1].split()[-1] == f"{best['speedup']:.3f}"
    figure = (tmp_path / "whole.run/search.svg").read_text()
    assert figure.startswith("<?xml") and "blocks left out" in figure

    # Killed while it wrote its sixth trial: the same command ends with the same bytes, and decodes fewer trials.
    run_folder = tmp_path / "cut.run"
    shutil.copytree(tmp_path / "whole.run", run_folder)
    (run_folder / "trials.jsonl").write_text("".join(log[:7]) + log[7][:20])
    code, said = run(target, tmp_path / "cut")
    assert code == 0, said
    assert (run_folder / "trials.jsonl").read_text() == "".join(log)
    assert (tmp_path / "cut/config.json").read_bytes() == (whole / "config.json").read_bytes()

    # With more trials, a search that was finished goes on from what it has.
    code, said = run(target, tmp_path / "cut", TRIALS + 1)
    assert code == 2 and "exists already" in said
    code, said = run(target, tmp_path / "longer", TRIALS + 1, "--run", run_folder)
    assert code == 0, said
    assert (run_folder / "trials.jsonl").read_text().startswith("".join(log))

    # What it wrote drafts, and the text is plain decoding's.
    engines = (jaxspec.Engine(model, method) for method in ("plain", f"layer-skip@{whole}{METHOD}"))
    plain, drafted = ([each.tokens for each in one.generate(["abc", "ab"], max_new_tokens=12)] for one in engines)
    assert drafted == plain


def test_what_a_block_costs(model, monkeypatch):
    """By hand: of 0.9 s a level, two attention blocks take 0.38 or 0.42 s and two MLPs 0.18 or 0.22 s."""
    costs = PieceCosts(
        plain=1.0, verify={1: 1.0, 2: 1.2}, rest=0.05, plain_rest=0.04, control_level=0.01, control_round=0.02
    )
    levels = {"whole": 0.9, "no attention": 0.52, "no mlp": 0.72, "bare": 0.3, "plain": 0.0}
    measured = {name: replace(costs, level=level) for name, level in levels.items()}
    asked: dict[str, Any] = {}
    monkeypatch.setattr(skip_search, "piece_costs", lambda engines, requests: asked.update(engines) or measured)
    costs = skip_search.measure_costs(model, parse_method("layer-skip"), [])
    asked.pop("plain")
    switches = {name: [kind.tolist() for kind in astuple(engine.models.draft)] for name, engine in asked.items()}
    on, off = [True, True], [False, False]
    assert switches == {"whole": [off, off], "no attention": [on, off], "no mlp": [off, on], "bare": [on, on]}
    assert (costs.plain, costs.verify, costs.level) == (1.0, {1: 1.0, 2: 1.2}, 0.9)
    assert (costs.attention, costs.mlp) == pytest.approx((0.2, 0.1))
    assert (costs.rest, costs.plain_rest) == (0.05, 0.04)
    assert (costs.control_level, costs.control_round) == (0.01, 0.02)
    pieces = costs.of_pieces(skip(LAYERS, attention=[0, 1], mlp=[1]))
    assert pieces.level == pytest.approx(0.9 - 0.4 - 0.1)


def test_measured_is_the_clock(model, monkeypatch):
    rounds = from_rows([[3, 2, 2, 2, 2, 3], [1, 0, 2, 2, 2, 1]])  # four tokens; two of four drafts accepted
    blank = Generation([1], [], "", "length", rounds, None, None, 0.0, 0.0, ())
    found = [replace(blank, decode_seconds=seconds) for seconds in (1.0, 3.0)]
    monkeypatch.setattr(skip_search, "warm", lambda engine, requests, learnt: [found[requests[0].index]])
    requests = [Request([1], SamplingParams(max_new_tokens=4), index) for index in range(2)]
    method = parse_method("layer-skip")
    found_out = skip_search.objective_of(model, method, "measured", requests, {"plain": 0.75})(skip(LAYERS, [], []))
    values = found_out.speedup, found_out.acceptance_rate, found_out.tau
    assert values == pytest.approx((0.75 / (4 / 8), 0.5, 2.0))
    assert skip_search.measure(model, method, "measured", requests) == {"plain": pytest.approx(4 / 8)}


def test_the_best_of_the_first_trials():
    speedups = [1.0] * 60 + [1.2] * 100 + [1.1] * 90
    trials = [Trial(skip(LAYERS, [], []), speedup, 0.5, 2.0) for speedup in speedups]
    found = [(count, best.speedup) for count, best in skip_search.best_so_far(trials)]
    assert found == [(50, 1.0), (100, 1.2), (200, 1.2), (250, 1.2)]
    assert [count for count, _ in skip_search.best_so_far(trials[:7])] == [7]
    assert [count for count, _ in skip_search.best_so_far(trials[:200])] == [50, 100, 200]


def test_other_choices_of_as_many_blocks():
    best = skip(8, attention=[1, 4, 5], mlp=[7])
    found = {name: layers_of(skips) for name, skips in strategies(best, seed=0).items()}
    random = found.pop("random")
    assert found == {
        "first": {"attention": [0, 1, 2], "mlp": [0]},
        "middle": {"attention": [2, 3, 4], "mlp": [3]},
        "last": {"attention": [5, 6, 7], "mlp": [7]},
        "uniform": {"attention": [1, 4, 6], "mlp": [4]},
    }
    assert (len(random["attention"]), len(random["mlp"])) == (3, 1)
    nothing = strategies(skip(8, [], []), seed=0)
    assert all(skips == skip(8, [], []) for skips in nothing.values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "ngram"), "a skip set is for the drafter layer-skip, and --method is ngram"),
        (("--method", "layer-skip+expected-gain"), "decides by the cost of a drafted level, which differs from set to"),
        (("--trials", 0), "--trials must be at least 1"),
        (("--seed", -1), "--seed must not be below 0, not -1"),
        (("--prompts", "builtin"), "--data has no effect with --prompts: leave out one of them"),
        (("--method", "layer-skip+chian"), "there is no builder or controller 'chian'"),
    ],
)
def test_refusals(options: tuple, says: str, target, tmp_path):
    code, said = command(
        "skip-search", "--target", target, "--data", target.parent / "text", "--out", tmp_path / "set", *options
    )
    assert code == 2
    assert says in said.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "left"), [(20, {1: 40, 2: 20, 3: 0}), (0, {3: 0})])
def test_says_what_is_left(
    seconds: int,
    left: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    """A line if ten seconds have passed since the last one, and after the last trial."""
    now = [1000.0]

    def objective(skips: SkipMask) -> Trial:
        now[0] += seconds
        return Trial(skips, speedup=1.0, acceptance_rate=1.0, tau=1.0)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    log = LineLog(tmp_path / "trials.jsonl", "the log", "another")
    log.write({}, [])
    skip_search.run_trials([], LAYERS, SkipSearch(target=tmp_path, trials=3), objective, log)
    found = re.findall(r"^trial (\d) of 3: best so far .*, (\d+) s left$", capsys.readouterr().err, re.MULTILINE)
    assert {int(trial): int(after) for trial, after in found} == left
