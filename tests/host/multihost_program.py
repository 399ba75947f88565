"""A program that tests run as one of several processes: several commands, each a JSON list of arguments.

`DELAY=SECONDS` lets every process but the first begin each command so much later.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from jaxspec.commands import console, convert, train
from jaxspec.commands import main as jaxspec
from jaxspec.host.hosts import Hosts
from jaxspec.options.shared import Devices
from tests.quick_runs import shorten


def main() -> None:
    shorten(pytest.MonkeyPatch(), tree_sizes=(4,))  # costs are measured for at least one size
    for command in map(json.loads, sys.argv[1:]):
        if "--process-id" in command and command[-1] != "0":
            time.sleep(float(os.environ.get("DELAY", "0")))
        sys.argv = command
        try:
            PROGRAMS[command[0]]()
        except SystemExit as exit_:
            if exit_.code:
                raise


def budgets() -> None:
    """OUT gets tokens and rounds of texts with unequal budgets, in fewer rows than there are texts."""
    import jaxspec as library
    from jaxspec.host.processes import is_first

    target, mesh, out, *others = sys.argv[1:]
    hosts = Hosts(coordinator=others[1], processes=int(others[3]), process_id=int(others[5])) if others else Hosts()
    engine = library.Engine(target, "ngram+chain", mesh=Devices(mesh=mesh, hosts=hosts).open(several=True))
    prompts, limits = [f"def f{'x' * i}(" for i in range(4)], [3, 11, 9, 5]
    found = engine.generate(prompts, batch_size=2, max_new_tokens=limits, temperature=1.0, top_k=2)
    if is_first():
        Path(out).write_text(json.dumps([[each.tokens, each.statistics.rounds] for each in found]), encoding="utf-8")


def together() -> None:
    """Waits for the others again and again, and makes HOW-N; of HOW `raises`, the last process then fails."""
    how, folder, *others = sys.argv[1:]

    def work() -> None:
        from jaxspec.host import atomic, processes

        Hosts(coordinator=others[1], processes=int(others[3]), process_id=int(others[5])).join()
        with atomic.staged(Path(folder) / f"output-{others[5]}", 0):
            processes.wait()
            (Path(folder) / f"{how}-{others[5]}").touch()
            for _ in range(10_000):
                if how == "raises" and others[5] != "0":
                    raise ValueError("there is something wrong here alone")
                processes.largest(1.0)

    console.run(work)


PROGRAMS = {
    "jaxspec": jaxspec.main,
    "jaxspec-convert": convert.main,
    "jaxspec-train": train.main,
    "budgets": budgets,
    "together": together,
}


if __name__ == "__main__":
    main()
