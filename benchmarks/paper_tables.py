"""Column "ours" of docs/papers.md: the templates of papers.toml, filled from results/papers.json; see tables.py.

A template has fields such as `{17.b2 speedup eagle+chain eagle+static}`: the number of a command by `papers.py --list`
(with `.b2` for batches of 2, `.t1` for temperature 1), a key of `SHOWN`, and methods, whose values are listed.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.papers import commands, output_of
from benchmarks.plan_tables import RESULTS, result, with_interval

TEMPLATES = tomllib.loads((Path(__file__).parent / "papers.toml").read_text(encoding="utf-8"))
RUN = ("device", "dtype", "target_seconds")
"""What is kept of each run, beside its methods."""


def number(format_: str, values: dict[str, Any], key: str) -> str:
    """One value, such as `3.52`."""
    return format(values[key], format_)


def interval(values: dict[str, Any], key: str) -> str:
    """The value of a key such as `tau_interval`, and its 95 % interval."""
    return with_interval(values, key.removesuffix("_interval"))


def several(format_: str, values: dict[str, Any], key: str) -> str:
    """The values of a list or an object, such as `0.83, 0.79`; `KEY.INNER` is one value of each of several objects."""
    key, _, inner = key.partition(".")
    found = values[key]
    if inner:
        found = [each[inner] for each in (found.values() if isinstance(found, dict) else found)]
    return ", ".join(format(each, format_) for each in (found.values() if isinstance(found, dict) else found))


SHOWN: dict[str, Callable[[dict[str, Any], str], str]] = {
    **dict.fromkeys(("tau", "tau_drafted", "flat_speedup", "acceptance_rate"), partial(number, ".2f")),
    **dict.fromkeys(("speedup", "modelled_speedup"), lambda values, key: f"{values[key]:.2f}×"),
    **dict.fromkeys(("nodes_per_round", "tera_operations", "gigabytes"), partial(number, ".1f")),
    **dict.fromkeys(("tau_interval", "speedup_interval"), interval),
    "harmonic_mean": lambda values, key: f"{100 * values[key]:.0f}",
    "tokens_per_second": partial(number, ".0f"),
    "acceptance_by_position": partial(several, ".2f"),
    "breakdown": partial(several, ".3f"),
    "seconds": partial(number, ".2f"),
    "share": partial(number, ".3f"),
    "calibration": partial(several, ".2f"),
    "categories": partial(several, ".2f"),
}
"""How the keys of a method that are kept are shown."""
LARGE = ("calibration", "categories")  # kept for the runs whose fields name them
FIELD = re.compile(r"\{(\S+) ([\w]+)(\.\w+)? ([^}]+)\}")


def significant(value: Any) -> Any:
    """The value with floats of six significant digits, which are more than any page shows."""
    if isinstance(value, dict):
        return {key: significant(each) for key, each in value.items()}
    if isinstance(value, list):
        return [significant(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def kept(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """The needed part of a benchmark's results."""
    fields = FIELD.findall("".join(template for templates in TEMPLATES.values() for template in templates.values()))
    keys = [key for key in SHOWN if key not in LARGE or (name, key) in {(run, key) for run, key, *_ in fields}]
    methods = {
        method: {key: each[key] for key in keys if each.get(key) is not None} for method, each in run["methods"].items()
    }
    return significant({key: run[key] for key in RUN if key in run} | {"methods": methods})


def outputs(folder: Path, command_number: int, command: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of a command by name: a file for each temperature and batch size, or the lines that it printed.

    The methods of a sweep are named by the setting that varies, such as `length=2`.
    """
    file = folder / (output_of(command) or f"{command_number}.json")
    words = shlex.split(command)
    for each in sorted([file, *folder.glob(f"{file.stem}.*.json")] if file.exists() else ()):
        run = json.loads(each.read_text(encoding="utf-8"))
        if "--over" in words:
            setting, _, values = words[words.index("--over") + 1].partition("=")
            names = [f"{setting}={value}" for value in values.split(",")]
            plain, *methods = run["methods"]
            run["methods"] = {
                name: run["methods"][method]
                for name, method in zip([plain, *names, *methods[len(names) :]], run["methods"], strict=True)
            }
        yield f"{command_number}{each.stem.removeprefix(file.stem)}", run
    if "--run" in words:
        yield f"{command_number}", of_search(folder / words[words.index("--run") + 1] / "trials.jsonl")
    if command.startswith("python"):
        for line in (folder / f"{command_number}.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("{"):
                run = json.loads(line)
                yield f"{command_number}.b{run['batch_size']}" if "batch_size" in run else f"{command_number}", run


def of_search(log: Path) -> dict[str, Any]:
    """Of a search for a skip set: the costs of blocks, and the best modelled speedup of its first trials."""
    _, first, *trials = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    shares = {
        f"{block}-block": {"share": first["costs"][block] / first["costs"]["level"]} for block in ("attention", "mlp")
    }
    best = {str(n): {"modelled_speedup": max(each["speedup"] for each in trials[:n])} for n in (50, 100, 200, 300)}
    return {"methods": shares | best}


def keep(folder: Path) -> None:
    """Puts the runs of a folder of papers.py into results/papers.json, in place of older runs of the same command."""
    about, *done = map(json.loads, (folder / "done.jsonl").read_text(encoding="utf-8").splitlines())
    succeeded = {line["command"] for line in done if line["exit_code"] == 0}
    found: dict[str, Any] = result("papers")
    for command_number, command in enumerate(commands(), 1):
        if command in succeeded:
            for name, run in outputs(folder, command_number, command):
                found[name] = {"command": command, "commit": about["settings"]["commit"]} | kept(name, run)
    by_number = lambda name: [(len(part), part) for part in name.split(".")]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found, key=by_number))
    (RESULTS / "papers.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def filled(page: str) -> str:
    """docs/papers.md with its column "ours" made anew. Raises KeyError for an unknown run, key or method."""
    runs, typed = result("papers"), dict(enumerate(commands(), 1))
    for name, run in runs.items():
        assert run["command"] == typed[int(name.partition(".")[0])], f"run {name} of papers.json is another command's"

    def value(field: re.Match[str]) -> str:
        run, key, inner, methods = field.groups(default="")
        return ", ".join(SHOWN[key](runs[run]["methods"][method], key + inner) for method in methods.split())

    def row(paper: str, line: str) -> str:
        cells = line.split(" | ")
        if len(cells) == 5 and (template := TEMPLATES[paper].get(cells[0].removeprefix("| "))):
            cells[2] = FIELD.sub(value, " ".join(template.split()))
        return " | ".join(cells)

    def section(text: str) -> str:
        paper = text.partition(" (")[0]
        return "\n".join(row(paper, line) for line in text.split("\n")) if paper in TEMPLATES else text

    return "\n## ".join(section(text) for text in page.split("\n## "))
