"""Do prices add up? Prices measured on one half of the prompts predict the decoding times of the other half.

    python benchmarks/prices.py --json prices.json
    python benchmarks/prices.py --drafters eagle edd --limit 8 --max-new-tokens 32
    python benchmarks/prices.py --target FOLDER/config.json --simulate acceptance=0.75,0.69,0.67 --limit 8

For each drafter, chains of 1 and of 3 tokens decode every second prompt. The target's forwards are timed for every
number of verified nodes (`evaluate/piece_times.py`). A least-squares fit splits the remaining time of a round into the
price of a drafted level and the price of the rest of a round. Longer chains and trees then decode the other prompts.
Their counts and three lists of prices predict the decoding time:

    chains  the two fitted prices.
    width   the two fitted prices. For a tree, each is raised by the measured difference between the tree and the chain
            of 3 (whole rounds, `costs/timing.py`).
    timed   a level and the rest as `bench` prices them: timed in whole rounds of each method, without a fit.

A level of a chain expands one node, a level of a tree several. A chain's price is therefore only a lower bound of a
tree's price. For a tree use `width` or `timed`; `chains` is printed for comparison.

Run it on an idle machine: no price accounts for the time that other jobs take.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import head_names
from jaxspec.commands.bench import read_shape
from jaxspec.decoding.request import SamplingParams
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import drafter_of
from jaxspec.evaluate import bench, piece_times, runner
from jaxspec.evaluate.cost_model import PieceCosts, run_costs
from jaxspec.evaluate.piece_times import PieceTimes
from jaxspec.evaluate.questions import Question, read_questions
from jaxspec.evaluate.results import history
from jaxspec.evaluate.runlog import Answer, RunLog
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.evaluate.uncertainty import RatioOfSums, per_question
from jaxspec.host import environment
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.terminal import say
from jaxspec.methods.method import parse_method
from jaxspec.options.main import Bench

FITTED = ("chain,length=1", "chain,length=3")
PREDICTED = ("chain,length=5", "static", "eagle2", "budgeted")
SIMULATED = ("chain,length=5", "static", "uniform")
SIMULATED_DRAFTERS = ("draft-model", "eagle", "early-exit", "edd", "medusa", "layer-skip")
LISTS = ("chains", "width", "timed")
WITHIN, MEDIAN = 0.15, 0.10  # limits of the largest and of the median relative error


@dataclasses.dataclass(frozen=True)
class Fit:
    """Seconds of a drafted level and of the rest of a round, fitted to decoding times."""

    level: float
    rest: float


@dataclasses.dataclass(frozen=True)
class Row:
    """A method's results on the second half of the prompts.

    Attributes:
        method: its name.
        measured: decoding time in seconds.
        off: relative error of the predicted time, by list of prices.
        interval: 95 % interval of this error, by list of prices; None: too few prompts.
    """

    method: str
    measured: float
    off: dict[str, float]
    interval: dict[str, list[float] | None]


def fit(
    runs: Mapping[str, Sequence[Answer]], forwards: Mapping[str, PieceCosts], sizes: Mapping[str, Sequence[int]]
) -> Fit:
    """Fits the two prices to the decoding time of each answer without its forwards (non-negative least squares).

    Args:
        runs: answers, by method.
        forwards: prices of plain forwards and of verification, by method.
        sizes: tree sizes that the method verifies, by method.
    """
    counts, left = [], []
    for method, answers in runs.items():
        for answer, seconds in zip(answers, per_question(answers).seconds, strict=True):
            rounds = [history(turn) for turn in answer.turns]
            counts.append((sum(each.levels.sum() for each in rounds), sum(len(each.levels) for each in rounds)))
            left.append(seconds - run_costs([[each] for each in rounds], forwards[method], sizes[method]).whole)
    (level, rest), _ = nnls(np.array(counts, float), np.array(left))
    return Fit(float(level), float(rest))


def price_lists(pieces: PieceTimes, method: str, chain: str, fitted: Fit, one_path: bool) -> dict[str, PieceCosts]:
    """The three lists of prices for a method.

    Args:
        chain: the chain whose level and rest are compared with a tree's.
        fitted: the two fitted prices.
        one_path: whether the method drafts a chain, or nothing.
    """
    forwards = PieceCosts(plain=pieces.target[1], verify=pieces.resumed.get(method, pieces.target))
    more = lambda piece: 0.0 if one_path else max(piece[method] - piece[chain], 0.0)
    level, rest = fitted.level, fitted.rest
    return {
        "chains": dataclasses.replace(forwards, level=level, rest=rest),
        "width": dataclasses.replace(forwards, level=level + more(pieces.level), rest=rest + more(pieces.rest)),
        "timed": dataclasses.replace(forwards, level=pieces.level[method], rest=pieces.rest[method]),
    }


def predict(answers: Sequence[Answer], prices: Mapping[str, PieceCosts], sizes: Sequence[int]) -> Row:
    """Compares the measured time of one method's answers with its prediction by each list of prices."""
    measured = per_question(answers).seconds[:, None]
    off, interval = {}, {}
    for name, pieces in prices.items():
        each = [run_costs([[history(turn)] for turn in answer.turns], pieces, sizes).whole for answer in answers]
        ratio = RatioOfSums(np.array(each)[:, None], measured)
        off[name] = ratio.value - 1
        ends = ratio.interval()
        interval[name] = None if ends is None else [end - 1 for end in ends]
    return Row(answers[0].method, float(measured.sum()), off, interval)


def decode(settings: Bench, questions: Sequence[Question], engines: Mapping[str, Engine]) -> dict[str, list[Answer]]:
    """Answers by method. As in `bench`, methods take turns, question by question."""
    shown = settings.template.format
    plan = Workload(tuple(questions), settings.sampling, 1, settings.repeats, settings.chat, chat_format=shown)
    runner.check(plan, engines[REFERENCE])
    log = RunLog(None, {}, lambda answers: True)
    runner.run(plan, engines, log, lambda: None)
    return {name: [answer for answer in log.answers if answer.method == name] for name in engines}


def of_drafter(settings: Bench, drafter: str, predicted: Sequence[str]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a drafter, after the row of plain decoding; and its prices for the JSON."""
    fitted_to = [f"{drafter}+{builder}" for builder in FITTED]
    asked = [f"{drafter}+{builder}" for builder in predicted]
    shape = None if settings.simulate is None else read_shape(locate(settings.target))
    methods = {name: parse_method(name) for name in (REFERENCE, *fitted_to, *asked)}
    engines = bench.build(settings, methods, None, shape)
    spec = {name: e.method.speculation(True, tree_sizes=e.tree_sizes) for name, e in engines.items()}
    sizes = {name: each.verify_sizes for name, each in spec.items()}
    questions = read_questions(settings.prompts, settings.limit)
    first, second = questions[::2], questions[1::2]

    say(f"{drafter}: chains of 1 and 3 decode {len(first)} prompts")
    runs = decode(settings, first, {name: engines[name] for name in (REFERENCE, *fitted_to)})
    say(f"{drafter}: forwards and whole rounds are timed")
    plan = Workload(tuple(first), settings.sampling, 1, 1, settings.chat, chat_format=settings.template.format)
    requests = [plan.request(engines[REFERENCE], number, ()) for number in range(len(first))]
    middle = sorted(requests, key=lambda request: len(request.tokens))[len(requests) // 2]
    pieces = piece_times.measure(engines, [middle])
    forwards = {
        name: PieceCosts(plain=pieces.target[1], verify=pieces.resumed.get(name, pieces.target)) for name in engines
    }
    fits = {
        name: fit({method: runs[method] for method in methods}, forwards, sizes)
        for name, methods in ((REFERENCE, [REFERENCE]), (drafter, fitted_to))
    }

    say(f"{drafter}: {', '.join(predicted)} decode {len(second)} others")
    runs = decode(settings, second, {name: engines[name] for name in (REFERENCE, *asked)})
    rows = []
    for name in (REFERENCE, *asked):
        fitted = fits[REFERENCE if name == REFERENCE else drafter]
        one_path = name == REFERENCE or engines[name].method.builder.is_chain
        prices = price_lists(pieces, name, fitted_to[-1], fitted, one_path)
        rows.append(predict(runs[name], prices, sizes[name]))
    priced = {name: dataclasses.asdict(found) for name, found in fits.items()}
    return rows, {"fitted": priced, "timed": dataclasses.asdict(pieces)}


def drafters_of(settings: Bench) -> tuple[str, ...]:
    """Names of the drafters to measure: prompt lookup and all heads of the target, or all that can be simulated."""
    if settings.simulate is not None:
        return SIMULATED_DRAFTERS
    target = locate(settings.target)
    typed = [(drafter_of(target, head).name, head) for head in head_names(target)]
    return (*(name if name == head else f"{name}@{head}" for name, head in typed), "ngram")


def in_words(row: Row) -> str:
    """A row of the printed table, in Markdown."""
    cells = []
    for name in LISTS:
        ends = row.interval[name]
        between = "" if ends is None else f" [{', '.join(format(100 * end, '+.0f') for end in ends)}]"
        cells.append(f"{100 * row.off[name]:+.0f} %{between}")
    return f"| `{row.method}` | {row.measured:.2f} | {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By list of prices: the number of methods, how many are within 15 %, and the median and largest error."""
    found = {}
    for name in LISTS:
        errors = [abs(row.off[name]) for row in rows]
        within = sum(error <= WITHIN for error in errors)
        found[name] = {
            "methods": len(rows),
            "within": within,
            "median": statistics.median(errors),
            "largest": max(errors),
            "passed": within == len(rows) and statistics.median(errors) <= MEDIAN,
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table, drafter by drafter, and its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("builtin"))
    parser.add_argument("--prompts", type=Path, default=Path("builtin"))
    parser.add_argument("--drafters", nargs="+", metavar="DRAFTER[@HEAD]", help="default: all of the target")
    parser.add_argument("--predicted", nargs="+", metavar="BUILDER", help=f"default: {' '.join(PREDICTED)}")
    parser.add_argument("--simulate", metavar="acceptance=CHANCE,...", help="use random weights of the target's shape")
    parser.add_argument("--limit", type=int, default=40, help="number of prompts in both halves together (default: 40)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write prices and errors here")
    asked = parser.parse_args(arguments)
    settings = Bench(
        target=asked.target,
        prompts=asked.prompts,
        methods=(),
        limit=asked.limit,
        sampling=SamplingParams(max_new_tokens=asked.max_new_tokens),
        repeats=asked.repeats,
        simulate=asked.simulate,
    )
    if asked.json is not None:
        check_folder(asked.json)
    predicted = asked.predicted or (PREDICTED if asked.simulate is None else SIMULATED)
    found: dict[str, Any] = {"device": environment.device(), "versions": environment.versions()}
    found |= {"settings": {name: value if value is None else str(value) for name, value in vars(asked).items()}}
    rows, by_drafter = [], {}
    print(f"| method | measured, s | {' | '.join(LISTS)} |\n|---|---|{'---|' * len(LISTS)}", flush=True)
    for drafter in asked.drafters or drafters_of(settings):
        ours, prices = of_drafter(settings, drafter, predicted)
        by_drafter[drafter] = {**prices, "rows": [dataclasses.asdict(row) for row in ours]}
        rows += ours[1:]
        print("\n".join(map(in_words, ours)), flush=True)
        if asked.json is not None:
            whole = {**found, "drafters": by_drafter, "summary": summary(rows)}
            write_whole(asked.json, json.dumps(whole, indent=2) + "\n")
    print("\nSummary without plain decoding (its error shows how far halves and prices of forwards differ):")
    for name, came_to in summary(rows).items():
        print(
            f"{name}: {came_to['within']} of {came_to['methods']} within {100 * WITHIN:.0f} %, median "
            f"{100 * came_to['median']:.1f} %, largest {100 * came_to['largest']:.1f} %"
        )


if __name__ == "__main__":
    main()
