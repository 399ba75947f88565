"""benchmarks/prices.py: its fit, the prices of a tree, and that every part runs and fits the next."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from jaxspec.costs import timing
from jaxspec.evaluate.cost_model import PieceCosts
from jaxspec.evaluate.piece_times import PieceTimes
from jaxspec.evaluate.runlog import Answer, Turn
from tests.evaluate import tiny

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TARGET = {1: 1.0, 2: 1.3, 4: 1.6, 8: 2.0}
PIECES = PieceTimes(
    target=TARGET,
    resumed={},
    level={"plain": 0.0, "d+chain,length=3": 0.10, "d+static": 0.16},
    rest={"plain": 0.2, "d+chain,length=3": 0.30, "d+static": 0.25},
    control_level={},
    control_round={},
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("prices")


def answer(method: str, question: int, rounds: int, levels: int, seconds: float) -> Answer:
    each = [levels + 1, levels, levels, levels, levels, levels + 1]
    return Answer(question, None, None, method, question, [Turn([1], [2], "", [each] * rounds, None, [], [seconds])])


def test_the_prices_that_made_the_times_are_found(script: Any):
    """Rounds of 1 and 3 levels, of 0.07 each and 0.4 for the rest, beside forwards over 2 and 4 nodes."""
    seconds = lambda rounds, levels: rounds * (0.07 * levels + 0.4 + TARGET[levels + 1])
    made = {
        f"K{levels}": [answer(f"K{levels}", i, i + 5, levels, seconds(i + 5, levels)) for i in range(4)]
        for levels in (1, 3)
    }
    forwards = {name: PieceCosts(plain=1.0, verify=TARGET) for name in ("K1", "K3")}
    found = script.fit(made, forwards, {"K1": (2,), "K3": (4,)})
    assert (found.level, found.rest) == pytest.approx((0.07, 0.4))
    plain = [answer("plain", i, 9, 0, 9 * 1.2) for i in range(3)]
    found = script.fit({"plain": plain}, {"plain": forwards["K1"]}, {"plain": (1,)})
    assert (found.level, found.rest) == pytest.approx((0.0, 0.2))


def test_a_level_of_many_nodes_is_priced_by_what_it_was_timed_to_take_more(script: Any):
    fitted = script.Fit(level=0.05, rest=0.4)
    prices = lambda one_path: script.price_lists(PIECES, "d+static", "d+chain,length=3", fitted, one_path)
    both = {name: (each.level, each.rest) for name, each in prices(False).items()}
    assert both["chains"] == (0.05, 0.4)
    assert both["width"] == pytest.approx((0.11, 0.4))  # the tree's rest was timed to take less: no credit for that
    assert both["timed"] == (0.16, 0.25)
    assert prices(True)["width"] == prices(True)["chains"]


def test_errors_and_what_they_come_to(script: Any):
    exact = PieceCosts(plain=1.0, verify=TARGET, level=0.1, rest=0.4)
    prices = dict.fromkeys(script.LISTS, exact)
    seconds = lambda rounds: rounds * (0.3 + 0.4 + 1.6)
    row = script.predict([answer("K3", i, 5, 3, 1.25 * seconds(5)) for i in range(3)], prices, (4,))
    assert row.measured == pytest.approx(3 * 1.25 * seconds(5))
    assert row.off["timed"] == pytest.approx(-0.2) and row.interval["timed"] == pytest.approx([-0.2, -0.2])
    right = script.predict([answer("K3", i, 5, 3, seconds(5)) for i in range(3)], prices, (4,))
    of = lambda rows: script.summary(rows)["timed"]
    assert (of([row, right])["within"], of([row, right])["passed"]) == (1, False)
    assert of([row, right])["median"] == pytest.approx(0.1)
    assert of([right])["passed"]
    assert "-20 % [-20, -20]" in script.in_words(row)


@pytest.mark.parametrize(
    ("drafter", "builders", "options"),
    [
        ("ngram", ("chain,length=2", "static"), ()),
        ("medusa", ("chain,length=2",), ("--simulate", "acceptance=0.7,0.5")),
    ],
)
def test_every_part_runs(
    drafter: str,
    builders: tuple[str, ...],
    options: tuple[str, ...],
    script: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.001)
    target = tiny.checkpoint(tmp_path / "ckpt")
    prompts = tiny.prompts(tmp_path / "p.jsonl", [{"prompt": "aba" * n} for n in (3, 4, 5, 6)])
    out = tmp_path / "out.json"
    script.main(
        [
            *("--target", str(target), "--prompts", str(prompts), "--drafters", drafter, "--repeats", "1"),
            *("--predicted", *builders, "--max-new-tokens", "6", "--json", str(out), *options),
        ]
    )
    found = json.loads(out.read_text())
    rows = found["drafters"][drafter]["rows"]
    assert [row["method"] for row in rows] == ["plain", *(f"{drafter}+{builder}" for builder in builders)]
    assert all(row["measured"] > 0 and row["off"].keys() == set(script.LISTS) for row in rows)
    assert all(came_to["methods"] == len(builders) for came_to in found["summary"].values())
    assert found["drafters"][drafter]["fitted"].keys() == {"plain", drafter}
    said = capsys.readouterr().out
    assert said.count(f"| `{drafter}+") == len(builders) and "timed: " in said
