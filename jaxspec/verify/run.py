"""`jaxspec verify`: runs cases until the time is spent, and gives the verdict."""

import dataclasses
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.questions import read_questions
from jaxspec.evaluate.run_description import weights_of, where
from jaxspec.evaluate.runlog import check_out, log_of
from jaxspec.host.arguments import check_options, check_unused
from jaxspec.host.atomic import check_ours, write_whole
from jaxspec.host.json_lines import LineLog
from jaxspec.host.terminal import progress, say
from jaxspec.methods.method import Method, parse_method
from jaxspec.options.by_command import Verify
from jaxspec.verify import verdict
from jaxspec.verify.cases import Case, Checker, Result, kinds, parse_cases
from jaxspec.verify.exact import measure_noise
from jaxspec.verify.schedule import expand_methods, in_order
from jaxspec.verify.workloads import GREEDY, PLAIN, Source

MOST_MINUTES = 10_000_000  # 19 years


def run(settings: Verify) -> None:
    """Runs the check, prints and writes the verdict. Exits with 1 if it failed."""
    check(settings)
    only = parse_cases(settings.only) if settings.only is not None else []
    named = [case.method for case in only] or settings.methods
    first, later = expand_methods(locate(settings.target), named, settings.seed)
    questions = read_questions(settings.prompts)
    model = load(settings.target, settings.dtype, settings.devices.open(), settings.quantize)
    source = Source.of(model, questions)
    description = describe(settings, model, source)
    log = None if settings.json is None else log_of(settings.json)
    file = log and LineLog(log, "the log of a verify run", "another --json")
    lines = [] if file is None else file.read(description)
    noise = next((line["noise"] for line in lines if "noise" in line), None)
    if noise is None:
        noise = measure_noise(Engine(model, PLAIN), source, settings.seed)
        lines = [{"noise": noise}]
    if file is not None:
        file.write(description, lines)
    checker = Checker(model, source, settings.seed, noise)
    for name in first:
        checker.engine(name)  # reports missing weights before anything runs
    earlier = {result.case: result for result in (Result.from_json(line) for line in lines if "case" in line)}
    if earlier:
        say(f"cases of an earlier run: {len(earlier)}")
    exact = description["dtype"] == "float32" and model.config.quantize is None
    kinds_of = (lambda method: (GREEDY,)) if settings.greedy else kinds
    results = list(work(checker, first, later, only, exact, earlier, settings.minutes * 60, file, kinds_of))
    summary = {**description, "seed": settings.seed} | verdict.summarise(results, noise, exact, command(settings))
    verdict.show(summary, Console())
    fresh = [result for result in results if result.case not in earlier]
    if (seconds := sum(result.seconds for result in fresh)) > 0:
        say(f"{60 * sum(result.tokens for result in fresh) / seconds:,.0f} tokens per minute, with compilation")
    if settings.json is not None:
        write_whole(settings.json, json.dumps(summary, indent=2) + "\n")
    if not summary["passed"]:
        sys.exit(1)


def check(settings: Verify) -> None:
    """Raises ValueError for options that are invalid for any model."""
    check_options(settings, lambda value: value >= 0, "be 0 or above", "minutes", "seed")
    check_options(settings, lambda value: value <= MOST_MINUTES, f"be at most {MOST_MINUTES:,}", "minutes")
    if settings.only is not None:
        check_unused(settings, "--only", "json", "methods", "minutes", "greedy")
    if settings.json is not None:
        check_out(settings.json)
        check_ours(settings.json, log_of(settings.json))


def work(
    checker: Checker,
    first: Sequence[str],
    later: Sequence[str],
    only: Sequence[Case],
    exact: bool,
    earlier: dict[Case, Result],
    seconds: float,
    file: LineLog | None,
    kinds_of: Callable[[Method], tuple[str, ...]],
) -> Iterator[Result]:
    """Yields the result of each case, from an earlier run if it has the case.

    Args:
        first, later: as `expand_methods` returns them.
        only: the cases to run; empty: as many as `seconds` permit.
        exact: whether the target is float32 and not quantised.
        earlier: results of an earlier run.
        file: the log; None: nothing is written.
        kinds_of: the kinds of a method's cases.
    """
    done: dict[Case, Result] = {}
    needed = {Case(name, kind, 0) for name in first for kind in kinds_of(parse_method(name))}
    cases = iter(only) if only else in_order((*first, *later), len(first), done, exact, kinds_of)
    spent = 0.0
    with progress("seconds of checks:", round(seconds), form=lambda number: f"{number:,}") as shown:
        for case in cases:
            if case in done:
                continue
            began = time.perf_counter()
            result = earlier.get(case)
            if result is None:
                result = checker.check(case)
                result = dataclasses.replace(result, seconds=time.perf_counter() - began)
                if file is not None:
                    file.append([dataclasses.asdict(result)])
            done[case] = result
            spent += result.seconds
            yield result
            if shown.due():
                tokens = sum(result.tokens for result in done.values())
                left = 0 if only else len(needed - done.keys())
                more = f"; the time is spent, but {left} first cases are left" if left and spent >= seconds else ""
                shown.show(min(round(spent), shown.total), f"{tokens:,} tokens compared, last by {case}{more}")
            if not only and spent >= seconds and done.keys() >= needed:
                return


def describe(settings: Verify, model: Checkpoint, source: Source) -> dict[str, Any]:
    """The first keys of the JSON. The log begins with them too, so that a log of another run is recognised."""
    heads = {parse_method(name).head for name in settings.methods if name != "all"} | set(model.heads)
    return {
        **where(model),
        "settings": {
            "target": str(settings.target),
            "methods": list(settings.methods),
            "seed": settings.seed,
            "quantize": model.config.quantize,
            "mesh": settings.devices.mesh,
            "greedy": settings.greedy,
            "prompts": str(settings.prompts),
            "questions_sha256": hashlib.sha256(repr(source.texts).encode()).hexdigest(),
            **weights_of(model.path, sorted(filter(None, heads))),
        },
    }


def command(settings: Verify) -> str:
    """The command with the options that its cases depend on."""
    words = ["jaxspec", "verify", "--target", str(settings.target), "--seed", str(settings.seed)]
    if str(settings.prompts) != "builtin":
        words += ["--prompts", str(settings.prompts)]
    for name, value in (("dtype", settings.dtype), ("quantize", settings.quantize), ("mesh", settings.devices.mesh)):
        words += [] if value is None else [f"--{name}", value]
    return shlex.join(words)
