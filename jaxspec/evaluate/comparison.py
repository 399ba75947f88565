"""What `jaxspec bench --compare A.json B.json` does: two results side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxspec.engine.statistics import ratio
from jaxspec.evaluate.settings import Compare
from jaxspec.evaluate.table import grid

COLUMNS = {"tok/s": ("tokens_per_second", ".1f"), "speedup": ("speedup", ".2f"), "tau": ("tau", ".2f")}
LEFT_OUT = ("methods", "resolved", "questions_sha256", "target_sha256", "params_sha256", "heads_sha256")
"""Settings whose difference says nothing that the others do not."""


def run(settings: Compare) -> None:
    """Prints the two results side by side, and what else differs between the runs."""
    first, second = map(read, settings.compare)
    show(first, second, Console())


def read(path: Path) -> dict[str, Any]:
    """The results in a file. Raises ValueError where there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the results {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); name a file that `jaxspec bench --json` wrote") from error
    if not isinstance(found, dict) or not isinstance(found.get("methods"), dict):
        raise ValueError(f"{path} holds no results; name a file that `jaxspec bench --json` wrote")
    return found


def show(first: Mapping[str, Any], second: Mapping[str, Any], console: Console) -> None:
    """Prints a row a method that both have: first, second, and second / first.

    Raises:
        ValueError: they have no method in common.
    """
    shared = [name for name in first["methods"] if name in second["methods"]]
    if not shared:
        raise ValueError("the two results have no method in common, so there is nothing to compare")
    table = grid("method", [column for title in COLUMNS for column in (title, "second", "ratio")])
    for name in shared:
        cells = []
        for key, form in COLUMNS.values():
            ours, theirs = first["methods"][name][key], second["methods"][name][key]
            cells += [format(ours, form), format(theirs, form), format(ratio(theirs, ours), ".2f")]
        table.add_row(_label(first, second) + name, *cells)
    console.print(table, markup=False)
    line = lambda text: console.print(text, markup=False, highlight=False)
    for key, (ours, theirs) in differences(first, second).items():
        line(f"{key}: {ours} → {theirs}")
    for which, here, there in (("first", first, second), ("second", second, first)):
        if only := [name for name in here["methods"] if name not in there["methods"]]:
            line(f"only in the {which}: {', '.join(only)}")


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Device, dtype, versions and settings in which two runs differ."""
    flat = lambda run: {
        "device": run.get("device"),
        "dtype": run.get("dtype"),
        **{name: value for name, value in run.get("settings", {}).items() if name not in LEFT_OUT},
        **run.get("versions", {}),
    }
    ours, theirs = flat(first), flat(second)
    names = dict.fromkeys((*ours, *theirs))
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def _label(*runs: Mapping[str, Any]) -> str:
    return "simulated " if any(run.get("simulated") for run in runs) else ""
