"""Finished runs, read from their logs, which are the only source of a report, and their numbers."""

import dataclasses
import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from jaxspec.checkpoint.builtin import BUILTIN
from jaxspec.evaluate import results
from jaxspec.evaluate.results import Measured
from jaxspec.evaluate.runlog import Answer, log_of, not_whole, read_finished
from jaxspec.methods.method import Method, parse_method

PARTS = ("drafting", "verification", "control", "other")  # of the time of decoding, keys of `breakdown`
SUITES = {
    "humaneval": "HumanEval", "mbpp": "MBPP", "gsm8k": "GSM8K", "math": "MATH-500", "xsum": "XSum", "cnn-dm": "CNN/DM",
    "alpaca": "Alpaca",
}  # fmt: skip
"""The papers' names of the published formats (`evaluate/questions.py`)."""
FILES = {**SUITES, "mt-bench": "MT-bench", "mtbench": "MT-bench", "spec-bench": "Spec-Bench"}
"""The papers' names of files or their folders."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of `jaxspec bench` or `sweep`."""

    number: int  # on the page, from 0
    found: Mapping[str, Any]  # bench's JSON, counted again from the log
    answers: tuple[Answer, ...]
    methods: Mapping[str, Method]  # resolved, by the name as typed
    apart: tuple[str, ...] = ()  # how it differs from other runs, besides target, data, temperature and batch size

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.found["settings"]

    @property
    def target(self) -> str:
        """The target's name, the last component of its path."""
        return PurePath(self.settings["target"]).name or self.settings["target"]

    @property
    def data(self) -> str:
        """The papers' name of the questions, or the name of their file."""
        if self.settings["prompts"] == BUILTIN:
            return "held-out Python"
        file = PurePath(self.settings["prompts"])
        stem = file.name.removesuffix(".gz").rsplit(".", 1)[0]
        if stem.lower() in ("question", "questions"):  # as MT-bench and Spec-Bench are published
            stem = file.parent.name or stem
        return SUITES.get(self.settings.get("suite") or "", FILES.get(stem.lower().replace("_", "-"), stem))

    @property
    def simulated(self) -> bool:
        return bool(self.found.get("simulated"))

    @property
    def title(self) -> str:
        return self.where()

    def where(self, data: bool = True, batch: bool = True) -> str:
        """Target and conditions, without those that a column or an axis shows."""
        parts = [self.target, self.data] if data else [self.target]
        parts.append(f"T = {self.settings['temperature']:g}")
        if batch and self.settings["batch_size"] > 1:
            parts.append(f"batch {self.settings['batch_size']}")
        parts += self.apart
        return ", ".join([*parts, "simulated"] if self.simulated else parts)

    def value(self, method: str, *keys: str | int) -> Any:
        """A value of bench's JSON, such as `value("eagle", "categories", "math", "tau")`; None if there is none."""
        at: Any = self.found["methods"][method]
        for key in keys:
            try:
                at = at[key]
            except (KeyError, IndexError, TypeError):
                return None
        return at

    def turns(self, method: str) -> list[Any]:
        """All turns of a method's answers, in the order of the questions."""
        return [turn for answer in self.answers if answer.method == method for turn in answer.turns]


def read(paths: Sequence[Path]) -> list[Run]:
    """The runs of files that `bench --json` wrote, each given as OUT.json or as its log.

    Raises ValueError if a run is missing or not finished, or there is none.
    """
    if not paths:
        raise ValueError("name at least one file that `jaxspec bench --json` wrote")
    return with_distinct_titles([_read(number, path) for number, path in enumerate(paths)])


def with_distinct_titles(runs: Sequence[Run]) -> list[Run]:
    """The runs with distinct titles: they name the conditions in which the runs differ, or else the run's number."""
    conditions = [_conditions(run, runs) for run in runs]
    differs = [key for key in conditions[0] if len({each[key] for each in conditions}) > 1]
    named = [
        dataclasses.replace(run, apart=tuple(each[key] for key in differs if each[key]))
        for run, each in zip(runs, conditions, strict=True)
    ]
    titles = [run.title for run in named]
    number = lambda run: (f"run {run.number + 1}",) if titles.count(run.title) > 1 else ()
    return [dataclasses.replace(run, apart=(*run.apart, *number(run))) for run in named]


def _conditions(run: Run, runs: Sequence[Run]) -> dict[str, str]:
    """Conditions that the numbers depend on. Runs with different conditions must not share a row of a table."""
    settings, tokens = run.settings, run.settings.get("max_new_tokens")
    folders = {each.settings["target"] for each in runs if each.target == run.target}
    return {
        "target": f"in {PurePath(settings['target']).parent}" if len(folders) > 1 else "",
        "device": run.found["device"],
        "dtype": run.found["dtype"],
        "quantize": settings.get("quantize") or "",
        "max_new_tokens": f"{tokens} tokens" if tokens else "",
        "simulate": settings.get("simulate") or "",
        "mesh": f"mesh {settings['mesh']}" if settings.get("mesh") else "",
        "top_p": f"top-p {settings['top_p']:g}" if settings.get("top_p", 1) < 1 else "",
        "top_k": f"top-k {settings['top_k']}" if settings.get("top_k") else "",
    }


def _read(number: int, path: Path) -> Run:
    log = path if path.suffix == ".jsonl" else log_of(path)
    if not log.exists():
        raise ValueError(f"there is no {log}, which `jaxspec bench --json {path}` writes")
    about, answers, values = read_finished(log)
    try:
        measured = Measured.from_json(values)
        if not all(len(turn.rounds) == len(turn.trees or ()) for answer in answers for turn in answer.turns):
            raise ValueError("a round has no tree")
        return Run(
            number=number,
            found=results.summarise(about, answers, measured),
            answers=tuple(answers),
            methods={name: parse_method(form.resolved) for name, form in measured.forms.items()},
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # it was read without any check
        raise ValueError(not_whole(log)) from error


# --- numbers, each with its format and its source in a run

NOTHING = "–"
Real = float | int
NumberFormat = Callable[[Real], str]
WHOLE, ONE, PLAIN, SHARE, TIMES = "{:.0f}".format, "{:.1f}".format, "{:.2f}".format, "{:.3f}".format, "{:.2f}×".format


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of a run."""

    value: Real | None
    form: NumberFormat
    of: Sequence[Any]  # its source: run, method and keys of bench's JSON; or [operation, source, source]
    interval: "Sequence[Number]" = ()  # the ends of its 95 % interval

    def __str__(self) -> str:
        return NOTHING if self.value is None else self.form(self.value).replace("-", "−")

    def __html__(self) -> str:
        """HTML: the rounded value with its source, and the interval."""
        if self.value is None:
            return NOTHING
        found = f"<data {self.source('value')}>{escape(self)}</data>"
        ends = ", ".join(end.__html__() for end in self.interval)
        return f'{found}<span class="interval"> [{ends}]</span>' if ends else found

    def source(self, value: str = "data-value") -> str:
        """HTML attributes with the number's source and, named `value`, the exact number."""
        return f'data-of="{escape(json.dumps(list(self.of)))}" {value}="{self.value!r}"'


FORMS = {
    **dict.fromkeys(("speedup", "modelled_speedup"), TIMES),
    **dict.fromkeys(("tokens_per_second", "nodes_per_round", "depth_per_round"), ONE),
    "unexplained_divergences": WHOLE,
    "quality": SHARE,
}
"""The format of a number by its key; others have PLAIN."""


def number(run: Run, method: str, *keys: str | int, form: NumberFormat | None = None) -> Number:
    """A number of a run, with its interval if it has one."""
    kind = next((str(key) for key in reversed(keys) if str(key) in FORMS), "")
    *folder, last = keys
    ends = (*folder, f"{last}_interval")
    interval = [
        Number(end, PLAIN, [run.number, method, *ends, at]) for at, end in enumerate(run.value(method, *ends) or ())
    ]
    return Number(run.value(method, *keys), form or FORMS.get(kind, PLAIN), [run.number, method, *keys], interval)


def derived(operation: str, first: Number, second: Number, form: NumberFormat) -> Number:
    """`ratio` or `difference` of two numbers."""
    if first.value is None or not second.value:
        return Number(None, form, [])
    value = first.value / second.value if operation == "ratio" else first.value - second.value
    return Number(value, form, [operation, list(first.of), list(second.of)])


def escape(text: object) -> str:
    return html.escape(str(text))


def a_token(run: Run, name: str, *keys: str) -> Number:
    """Seconds of a part of decoding, in milliseconds per token."""
    return derived("ratio", number(run, name, *keys), number(run, name, "tokens"), lambda value: f"{1e3 * value:.3g}")
