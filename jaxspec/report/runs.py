"""Finished runs, read back from their logs: everything that a page shows comes from there."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from jaxspec.bundled import BUILTIN
from jaxspec.evaluate import results
from jaxspec.evaluate.results import Form, Measured
from jaxspec.evaluate.runlog import Answer, read_finished
from jaxspec.methods import Method, parse_method

SUITES = {"humaneval": "HumanEval", "gsm8k": "GSM8K", "xsum": "XSum", "cnn-dm": "CNN/DM", "alpaca": "Alpaca"}
"""What the papers call the published formats (`evaluate/formats.py`)."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of `jaxspec bench` or `sweep`.

    Attributes:
        number: among the runs of the page, from 0.
        found: bench's JSON, counted again from the log.
        methods: every method of it, resolved, by its name as typed.
    """

    number: int
    found: Mapping[str, Any]
    answers: tuple[Answer, ...]
    methods: Mapping[str, Method]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.found["settings"]

    @property
    def target(self) -> str:
        """The target's name, the last component of its path."""
        return PurePath(self.settings["target"]).name

    @property
    def data(self) -> str:
        """What the questions are called in the papers, or the name of their file."""
        if self.settings["prompts"] == BUILTIN:
            return "held-out Python"
        stem = PurePath(self.settings["prompts"]).name.removesuffix(".gz").rsplit(".", 1)[0]
        known = "MT-bench" if stem.lower().replace("-", "_") in ("mt_bench", "mtbench") else stem
        return SUITES.get(self.settings.get("suite") or "", known)

    @property
    def simulated(self) -> bool:
        return bool(self.found.get("simulated"))

    @property
    def title(self) -> str:
        """Target, data and conditions in a few words."""
        parts = [self.target, self.data, f"T = {self.settings['temperature']:g}"]
        if self.settings["batch_size"] > 1:
            parts.append(f"batch {self.settings['batch_size']}")
        return ", ".join([*parts, "simulated"] if self.simulated else parts)

    def value(self, method: str, *keys: str | int) -> Any:
        """A number of a method: `value("eagle", "categories", "math", "tau")`; None where there is none."""
        at: Any = self.found["methods"][method]
        for key in keys:
            try:
                at = at[key]
            except (KeyError, IndexError, TypeError):
                return None
        return at

    def turns(self, method: str) -> list[Any]:
        """All answers of a method, turn by turn, in the order of the questions."""
        return [turn for answer in self.answers if answer.method == method for turn in answer.turns]


def read(paths: list[Path]) -> list[Run]:
    """The runs behind files that `--json` names; each may be given as OUT.json or as its log.

    Raises:
        ValueError: a run that is not there or not finished, or none at all.
    """
    if not paths:
        raise ValueError("name at least one file that `jaxspec bench --json` wrote")
    return [_read(number, path) for number, path in enumerate(paths)]


def _read(number: int, path: Path) -> Run:
    log = path if path.suffix == ".jsonl" else Path(f"{path}.jsonl")
    if not log.exists():
        raise ValueError(f"there is no {log}, which `jaxspec bench --json {path}` would have written")
    about, answers, values = read_finished(log)
    measured = Measured(**values)
    if measured.forms is None:
        raise ValueError(f"{log} was written by an earlier version; run the same `jaxspec bench` again")
    forms = {name: Form(**{**form, "sizes": tuple(form["sizes"])}) for name, form in measured.forms.items()}
    return Run(
        number=number,
        found=results.summarise(about, answers, measured, forms),
        answers=tuple(answers),
        methods={name: parse_method(form.resolved) for name, form in forms.items()},
    )
