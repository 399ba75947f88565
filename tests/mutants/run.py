"""`make mutants`: whether the tests notice that the library was broken.

Every mutant is applied to a copy of the working tree, where its tests then run. The outcomes are kept in a file, one
line each, by mutant and commit, so that a run that was stopped goes on.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import tree_state
from tests.mutants import all_mutants
from tests.mutants.mutant import ROOT, ByHand, Mutant, StaleError

RESULTS = ROOT / ".cache" / "mutants.jsonl"
PYTEST = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--durations=0")
KILLED, SURVIVED, TIMED_OUT, BROKEN, STALE = "killed", "survived", "timed out", "broken", "stale"
"""Outcomes. `broken`: the tests fail, or there are none, without the mutant too."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutant, or of tests without any.

    Attributes:
        by: the first test that failed.
    """

    mutant: str
    commit: str
    outcome: str
    seconds: float
    by: str = ""


def main() -> None:
    """Runs what is asked for; exits with 1 if a mutant survives, is stale, or has tests that fail without it."""
    options = _options()
    chosen = [mutant for mutant in all_mutants.mutants() if _is_chosen(mutant, options)]
    if options.list:
        print(*(f"{mutant.name}  {' '.join(mutant.tests)}" for mutant in chosen), sep="\n")
        return
    commit, kept = tree_state.name(), {} if options.again else _kept(options.results)
    outcomes: list[Outcome] = []
    with _copied_tree() as tree:
        for mutant in chosen[: options.limit]:
            if mutant.equivalent:
                continue
            found = kept.get((mutant.name, commit))
            if found is None or found.outcome == BROKEN:
                found = _run(mutant, tree, commit, kept, options)
                _keep(found, options.results)
            outcomes.append(found)
            print(f"{found.outcome:9} {found.seconds:5.0f} s  {mutant.name}  {found.by}", flush=True)
    counts = Counter(outcome.outcome for outcome in outcomes)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no mutant was chosen")
    sys.exit(int(any(outcome not in (KILLED, TIMED_OUT) for outcome in counts)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="mutants whose names contain one of these texts")
    parser.add_argument("--kind", choices=["by-hand", "generated"], help="one of the two kinds alone")
    parser.add_argument("--limit", type=int, help="so many mutants at most")
    parser.add_argument("--again", action="store_true", help="run what is kept of this commit once more")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of one mutant")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where outcomes are kept")
    parser.add_argument("--list", action="store_true", help="print the mutants and their tests, and run nothing")
    return parser.parse_args()


def _is_chosen(mutant: Mutant, options: argparse.Namespace) -> bool:
    kind = "by-hand" if isinstance(mutant, ByHand) else "generated"
    return options.kind in (None, kind) and (not options.only or any(part in mutant.name for part in options.only))


def _run(
    mutant: Mutant, tree: Path, commit: str, kept: dict[tuple[str, str], Outcome], options: argparse.Namespace
) -> Outcome:
    """The outcome of a mutant. Its tests must first pass without it, which is run once for all that have the same."""
    name = f"none: {' '.join(mutant.tests)}"
    sound = kept.get((name, commit))
    if sound is None or sound.outcome != SURVIVED:
        sound = _tested(name, tree, mutant.tests, commit, options.timeout)
        kept[name, commit] = sound
        _keep(sound, options.results)
    if sound.outcome != SURVIVED:
        return dataclasses.replace(sound, mutant=mutant.name, outcome=BROKEN)
    file = tree / mutant.file
    before = file.read_text(encoding="utf-8")
    try:
        changed = mutant.applied(before)
    except StaleError as error:
        return Outcome(mutant.name, commit, STALE, 0.0, str(error))
    try:
        _write(file, changed)
        return _tested(mutant.name, tree, mutant.tests, commit, options.timeout)
    finally:
        _write(file, before)


def _write(file: Path, text: str) -> None:
    """Writes a module and removes its bytecode, which may look newer than a file written in the same second."""
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _tested(name: str, tree: Path, tests: Sequence[str], commit: str, timeout: float) -> Outcome:
    """Runs tests in a tree."""
    cache = ROOT / ".cache"
    places = {"JAX_COMPILATION_CACHE_DIR": str(cache / "compiled"), "JAXSPEC_CACHE": str(cache / "jaxspec")}
    around = {**places, **os.environ, "PYTHONPATH": str(tree), "CI": "1"}  # CI: hypothesis draws the same every time
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PYTEST, *tests],
        cwd=tree, env=around, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Outcome(name, commit, TIMED_OUT, time.monotonic() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    outcome = {0: SURVIVED, 1: KILLED, 2: KILLED}.get(process.returncode, BROKEN)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Outcome(name, commit, outcome, time.monotonic() - began, failed[0][:200] if failed else "")


@contextlib.contextmanager
def _copied_tree() -> Iterator[Path]:
    """A copy of what git does not ignore, links as links."""
    listed = subprocess.run(_GIT_FILES, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="jaxspec-mutants-") as folder:
        for name in filter(None, listed):
            if (source := ROOT / name).is_symlink() or source.exists():
                (place := Path(folder, name)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place, follow_symlinks=False)
        yield Path(folder)


_GIT_FILES = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")


def _kept(results: Path) -> dict[tuple[str, str], Outcome]:
    """The outcomes of earlier runs, by mutant and commit."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found: dict[tuple[str, str], Outcome] = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a killed run left half written
            outcome = Outcome(**json.loads(line))
            found[outcome.mutant, outcome.commit] = outcome
    return found


def _keep(outcome: Outcome, results: Path) -> None:
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()
