"""`jaxspec bench --compare A.json B.json`: compares two results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from jaxspec.engine.statistics import ratio
from jaxspec.evaluate.runlog import Answer, answers_by_method, log_of, read_finished
from jaxspec.evaluate.runner import REFERENCE
from jaxspec.evaluate.uncertainty import PerQuestion, RatioOfSums, in_words, p_in_words, per_question
from jaxspec.host.json_lines import flat
from jaxspec.host.terminal import print_lines, print_table
from jaxspec.options.by_command import Compare

COLUMNS = {"tok/s": ("tokens_per_second", ".1f"), "speedup": ("speedup", ".2f"), "tau": ("tau", ".2f")}
COMPARED = ("device", "dtype", "settings", "versions")
LEFT_OUT = ("methods", "resolved", "questions_sha256", "target_sha256", "params_sha256", "heads_sha256")
"""Settings that only repeat other ones."""


def run(settings: Compare) -> None:
    console = Console()
    first, second = map(read, settings.compare)
    show(first, second, console)
    logs = list(map(log_of, settings.compare))
    if missing := [log for log in logs if not log.exists()]:
        print_lines(console, f"The difference was not tested: there is no {missing[0]}.")
        return
    ours, theirs = (read_finished(log)[1] for log in logs)
    show_tests(ours, theirs, console)


def read(path: Path) -> dict[str, Any]:
    """The results in a file. Raises ValueError if the file has none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the results {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); name a file that `jaxspec bench --json` wrote") from error
    methods = found.get("methods") if isinstance(found, dict) else None
    if not isinstance(methods, dict) or not all(map(_has_columns, methods.values())):
        raise ValueError(f"{path} holds no results; name a file that `jaxspec bench --json` wrote")
    return found


def _has_columns(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(values.get(key), int | float) for key, _ in COLUMNS.values())


def show(first: Mapping[str, Any], second: Mapping[str, Any], console: Console) -> None:
    """Prints first, second, and second / first for each method in both. Raises ValueError if there is none."""
    shared = [name for name in first["methods"] if name in second["methods"]]
    if not shared:
        raise ValueError("the two results have no method in common, so there is nothing to compare")
    rows, simulated = [], any(run.get("simulated") for run in (first, second))
    for name in shared:
        rows.append(cells := ["simulated " + name if simulated else name])
        for key, form in COLUMNS.values():
            ours, theirs = first["methods"][name][key], second["methods"][name][key]
            cells += [format(ours, form), format(theirs, form), format(ratio(theirs, ours), ".2f")]
    print_table(console, ["method"], [column for title in COLUMNS for column in (title, "second", "ratio")], rows)
    for key, (ours, theirs) in differences(first, second).items():
        print_lines(console, f"{key}: {ours} → {theirs}")
    for which, here, there in (("first", first, second), ("second", second, first)):
        if only := [name for name in here["methods"] if name not in there["methods"]]:
            print_lines(console, f"only in the {which}: {', '.join(only)}")


def show_tests(first: Sequence[Answer], second: Sequence[Answer], console: Console) -> None:
    """Prints a paired test for each method of both runs, over the questions that both answered."""
    before, after = on_shared_questions(first, second)
    count = len(before[REFERENCE].tokens)
    if not count:
        print_lines(console, "The difference was not tested: the runs share no question.")
        return
    print_lines(console, f"\nThe second run against the first, by a paired test over the {count} questions of both:")
    shared = [name for name in before if name in after]
    rows = [[name, *(cell for found in ratios(before, after, name) for cell in _tested(found))] for name in shared]
    print_table(console, ["method"], [column for title in COLUMNS for column in (title, "p")], rows)
    print_lines(
        console,
        "Percentages are 95 % bootstrap intervals over the questions. p: Wilcoxon's signed-rank test. unclear: no "
        "difference was found; more questions may show one.",
    )


def on_shared_questions(*runs: Sequence[Answer]) -> list[dict[str, PerQuestion]]:
    """For each run, the results of each method on the questions that all runs answered, in the same order."""
    methods = list(map(answers_by_method, runs))
    # In a run, every method has the questions in the same order. The text is compared too: files may differ.
    asked = [
        [(answer.question, *(turn.asked for turn in answer.turns)) for answer in run[REFERENCE]] for run in methods
    ]
    shared = [question for question in asked[0] if all(question in others for others in asked)]
    places = [np.array([questions.index(question) for question in shared], int) for questions in asked]
    return [
        {name: per_question(answers).take(at) for name, answers in run.items()}
        for run, at in zip(methods, places, strict=True)
    ]


def ratios(first: Mapping[str, PerQuestion], second: Mapping[str, PerQuestion], name: str) -> list[RatioOfSums]:
    """Ratios second / first of a method's tokens per second, speedup and tau, over the same questions."""
    one, other = first[name], second[name]
    batch = min(one.batch, other.batch, key=lambda batches: len(np.unique(batches)))  # the one with the larger batches
    faster = lambda name: second[name].speed(batch) / first[name].speed(batch)
    return [faster(name), faster(name) / faster(REFERENCE), other.tau / one.tau]


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Device, dtype, versions and settings that differ: (first, second) by name."""
    ours, theirs = (flat({key: run.get(key) for key in COMPARED}) for run in (first, second))
    names = [name for name in dict.fromkeys((*ours, *theirs)) if name not in LEFT_OUT]
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def _tested(found: RatioOfSums) -> tuple[str, str]:
    p_value = found.p_value()
    return in_words(found.interval(), p_value, "lower", "higher"), p_in_words(p_value)
