"""Writes the measured numbers of the pages from committed results: `python benchmarks/tables.py [--check]`.

A page has a block `<!-- table: NAME -->` … `<!-- end -->` for each table of this file; the text between is replaced.
With `--check` nothing is written, and the exit code is 1 if a page differs. `--keep RUN.json NAME` first keeps a run of
`jaxspec bench --json RUN.json` as `results/NAME.json`, without what no table needs.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "benchmarks/README.md")
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RUN = ("device", "dtype", "versions", "settings", "noise", "target_seconds")
METHOD = (
    *("resolved", "tokens", "rounds", "tau", "tau_interval", "acceptance_rate", "nodes_per_round", "tokens_per_second"),
    *("speedup", "speedup_interval", "modelled_speedup", "flat_speedup", "divergences"),
)
"""The keys of a run, and of each of its methods, that are kept."""

BEST = (
    *("dflash", "ngram+chain", "edd+chain,length=4", "draft-model@vdm+chain,length=4", "eagle+chain"),
    *("early-exit+chain,length=3", "eagle+eagle2"),
)
"""The methods of the README's table, as far as they were run."""


def keep(run: Path, name: str) -> None:
    """Writes results/NAME.json with the needed keys of a bench's JSON."""
    found = json.loads(run.read_text(encoding="utf-8"))
    kept = {key: found[key] for key in RUN if key in found}
    kept["methods"] = {method: {key: values[key] for key in METHOD} for method, values in found["methods"].items()}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def result(name: str) -> dict[str, Any]:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def with_interval(values: dict[str, Any], key: str) -> str:
    """`1.56 [1.44, 1.69]`."""
    low, high = values[f"{key}_interval"]
    return f"{values[key]:.2f}" + ("" if low == high else f" [{low:.2f}, {high:.2f}]")


def markdown(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def methods(run: dict[str, Any], chosen: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The run's methods that draft, the fastest first."""
    found = [(name, values) for name, values in run["methods"].items() if name != "plain"]
    found.sort(key=lambda pair: -pair[1]["speedup"])
    return ((name, values) for name, values in found if chosen is None or name in chosen)


def headline() -> str:
    """One sentence with the fastest method, and the README's table."""
    run = result("builtin_methods")
    fastest, values = next(methods(run))
    device = run["device"].removeprefix("cpu: ").replace("(R)", "").replace(" Processor", "")
    sentence = (
        f"On the first {run['settings']['limit']} prompts of `builtin`, greedy in {run['dtype']}, on a CPU ({device}), "
        f"`{fastest}` is {with_interval(values, 'speedup')} times as fast as plain decoding. "
    )
    differ = sum(len(each["divergences"]) for each in run["methods"].values())
    sentence += f"{differ or 'No'} text differed from plain decoding's.\n\n"
    rows = (
        [f"`{name}`", f"{each['tau']:.2f}", f"{each['nodes_per_round']:.3g}", with_interval(each, "speedup")]
        for name, each in methods(run, BEST)
    )
    return sentence + markdown(["method", "tau", "nodes", "speedup, 95 %"], rows)


def builtin_methods() -> str:
    """All methods on a CPU."""
    run = result("builtin_methods")
    rows = (
        [
            f"`{name}`",
            with_interval(each, "speedup"),
            f"{each['modelled_speedup']:.2f}",
            f"{each['flat_speedup']:.2f}",
            with_interval(each, "tau"),
            f"{each['acceptance_rate']:.2f}",
            f"{each['nodes_per_round']:.1f}",
        ]
        for name, each in methods(run)
    )
    return markdown(["method", "speedup, 95 %", "modelled", "flat", "tau, 95 %", "acceptance", "nodes"], rows)


def verification_costs() -> str:
    """One line: the cost of verification by number of tokens, in units of one forward."""
    seconds = {int(size): taken for size, taken in result("builtin_methods")["target_seconds"].items()}
    costs = ", ".join(f"{size}: {taken / seconds[1]:.2f}" for size, taken in sorted(seconds.items()) if size > 1)
    return f"One forward took {1000 * seconds[1]:.2f} ms. Verifying n tokens took, in units of it, {costs}.\n"


def builtin_h100() -> str:
    """Four methods on an H100."""
    run = result("builtin_h100")
    rows = (
        [
            f"`{name}`",
            f"{each['tokens_per_second']:,.0f}",
            with_interval(each, "speedup"),
            with_interval(each, "tau"),
            f"{each['nodes_per_round']:.0f}",
        ]
        for name, each in [("plain", run["methods"]["plain"]), *methods(run)]
    )
    return markdown(["method", "tokens/s", "speedup, 95 %", "tau, 95 %", "nodes"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "builtin-methods": builtin_methods,
    "verification-costs": verification_costs,
    "builtin-h100": builtin_h100,
}


def made(page: str) -> str:
    """The page with its tables made anew. Raises KeyError if it names an unknown table."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}{block[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page differs")
    parser.add_argument("--keep", nargs=2, metavar=("RUN.json", "NAME"), help="keep a run as results/NAME.json first")
    options = parser.parse_args()
    if options.keep:
        keep(Path(options.keep[0]), options.keep[1])
    differ = []
    for name in PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        if (now := made(page)) != page:
            differ.append(name)
            if not options.check:
                path.write_text(now, encoding="utf-8")
    if differ and options.check:
        sys.exit(f"not made from benchmarks/results: {', '.join(differ)}; run: python benchmarks/tables.py")


if __name__ == "__main__":
    main()
