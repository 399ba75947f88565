"""Writes the measured numbers of the pages from committed results: `python benchmarks/tables.py [--check]`.

A page has a block `<!-- table: NAME -->` … `<!-- end -->` for each table of this file; the text between is replaced.
With `--check` nothing is written, and the exit code is 1 if a page differs, or lacks a sentence of sentences.py.
`--keep RUN.json NAME` first keeps a run of `jaxspec bench --json RUN.json` as `results/NAME.json`, without what no
table needs; `--plans` those of `jaxspec plan --json`, and `--papers` a folder of papers.py.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import paper_tables, plan_tables, sentences, verify_tables
from benchmarks.plan_tables import RESULTS, markdown, result, with_interval

ROOT = RESULTS.parent.parent
PAGES = (
    *(
        "Makefile",
        "jaxspec/options/by_command.py",
        "README.md",
        "benchmarks/README.md",
        "docs/compiled.md",
        "docs/devices.md",
        "docs/large-models.md",
    ),
    *("docs/methods.md", "docs/papers.md", "docs/training.md", "docs/verify.md", "jaxspec/builtin/README.md"),
)
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RUN = ("device", "dtype", "versions", "settings", "noise", "target_seconds")
METHOD = (
    *("resolved", "tokens", "rounds", "tau", "tau_interval", "acceptance_rate", "nodes_per_round", "tokens_per_second"),
    *("acceptance_by_position", "speedup", "speedup_interval", "modelled_speedup", "flat_speedup", "divergences"),
)
"""The keys of a run, and of each of its methods, that are kept."""

KINDS = {
    "MT-bench": "bfloat16", "GSM8K": "gsm8k", "HumanEval": "humaneval", "summaries": "summaries",
    "translations": "translations", "MT-bench at temperature 1": "sampled",
    "MT-bench in float32": "float32",
}  # fmt: skip
"""The kinds of questions of the README's table, and how their results are named."""
SHOWN = ("eagle3,history=4+chain,length=3", "ngram+chain")  # the methods of that table


def keep(run: Path, name: str) -> None:
    """Writes results/NAME.json with the needed keys of a bench's JSON."""
    found = json.loads(run.read_text(encoding="utf-8"))
    kept = {key: found[key] for key in RUN if key in found}
    kept["methods"] = {method: {key: values[key] for key in METHOD} for method, values in found["methods"].items()}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def methods(run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The run's methods that draft, the fastest first."""
    found = [(name, values) for name, values in run["methods"].items() if name != "plain"]
    found.sort(key=lambda pair: -pair[1]["speedup"])
    return iter(found)


def headline() -> str:
    """README's table: a published chat model on questions of several kinds."""
    runs = {kind: result(f"smollm2_{name}") for kind, name in KINDS.items()}
    some = next(iter(runs.values()))
    device = some["device"].removeprefix("cpu: ").replace("(R)", "").replace(" Processor", "")
    differ = [each for run in runs.values() for name in SHOWN for each in run["methods"][name]["divergences"] or ()]
    explained = sum(each["explained"] for each in differ)
    sentence = (
        f"SmolLM2-135M-Instruct (dequantised from Q4_1) in {some['dtype']}, and last in float32, on a CPU ({device} "
        "with AMX): tau, and the speedup over plain decoding with its 95 % interval. "
        f"{len(differ)} greedy texts differed from plain decoding's, "
        f"{'all' if explained == len(differ) else explained} at a near-tie.\n\n"
    )
    cell = lambda values: f"{values['tau']:.2f}, {with_interval(values, 'speedup')}"
    rows = ([kind, *(cell(run["methods"][name]) for name in SHOWN)] for kind, run in runs.items())
    return sentence + markdown(["questions", *(f"`{name}`" for name in SHOWN)], rows)


def smollm2() -> str:
    """A published chat model on a CPU, in two dtypes."""
    runs = {dtype: result(f"smollm2_{dtype}") for dtype in ("bfloat16", "float32")}
    plain = [(dtype, 1000 / run["methods"]["plain"]["tokens_per_second"]) for dtype, run in runs.items()]
    differ = [
        (dtype, [each for method in run["methods"].values() for each in method["divergences"]])
        for dtype, run in runs.items()
    ]
    unexplained = sum(not each["explained"] for _, found in differ for each in found)
    times = " and ".join(f"{each:.0f} ms in {dtype}" for dtype, each in plain)
    counts = " and ".join(f"{len(found)} in {dtype}" for dtype, found in differ)
    text = (
        f"Plain decoding takes {times} a token. Texts that differ from it: {counts}, of which {unexplained} are not "
        "explained by a near-tie.\n\n"
    )
    rows = (
        [
            *(f"`{name}`", with_interval(each, "tau"), f"{each['nodes_per_round']:.3g}"),
            *(with_interval(run["methods"][name], "speedup") for run in runs.values()),
        ]
        for name, each in methods(runs["bfloat16"])
    )
    table = markdown(["method", "tau, 95 %", "nodes", "speedup in bfloat16, 95 %", "in float32"], rows)
    alone = "; ".join(
        f"`{name}` {with_interval(each, 'speedup')}, tau {each['tau']:.2f}"
        for name, each in methods(result("smollm2_head_alone"))
    )
    return f"{text}{table}\nThe run before it, in bfloat16, with the head alone: {alone}.\n{in_batches()}"


def in_batches() -> str:
    """The methods of README's table in larger batches."""
    found = []
    for rows in (4, 16):
        run = result(f"smollm2_batch{rows}")["methods"]
        speedups = " and ".join(f"`{name}` {run[name]['speedup']:.2f}" for name in SHOWN)
        found.append(f"{rows}: {speedups} ({run['plain']['tokens_per_second']:.0f} tokens/s plain)")
    return f"\nSpeedups in batches, with 16 questions and 64 tokens a turn, in bfloat16. Of {'; of '.join(found)}.\n"


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


def builtin_tau() -> str:
    """Tau of chains of 4 drafts of each head."""
    rows = ([f"`{name}`", with_interval(each, "tau")] for name, each in result("builtin_tau")["methods"].items())
    return markdown(["method", "tau, 95 %"], (row for row in rows if row[0] != "`plain`"))


def n_alpha() -> str:
    """Acceptance by position of chains of 5 at temperatures 0 and 1."""
    greedy, sampled = (result("papers")[name]["methods"] for name in ("2", "2.t1"))
    shown = lambda each: (" ".join(f"{n:.2f}" for n in each["acceptance_by_position"]), with_interval(each, "tau"))
    rows = ([f"`{name}`", *shown(each), *shown(sampled[name])] for name, each in greedy.items() if name != "plain")
    return markdown(["method", "T = 0", "tau, 95 %", "T = 1", "tau, 95 %"], rows)


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


def beside_others() -> str:
    """jaxspec, transformers and llama.cpp on one model."""
    run = result("beside_others")
    plain = run["runs"]["jaxspec plain float32"]["ms_per_token"]
    rows = (
        [
            *(name, f"{each['ms_per_token']:.1f}", f"{plain / each['ms_per_token']:.2f}"),
            f"{run['settings']['limit'] - len(each['divergences'])} of {run['settings']['limit']}",
        ]
        for name, each in run["runs"].items()
    )
    header = ["", "ms a token", "× jaxspec's plain decoding", "texts as transformers'"]
    versions = ", ".join(f"{name} {run['versions'][name]}" for name in ("torch", "transformers", "llama_cpp"))
    return f"{run['device']}, {run['date']}; {versions}.\n\n{markdown(header, rows)}"


EAGLES = {
    "eagle@./eagle": "`eagle`",
    "eagle3@base": "`eagle3`",
    "eagle3@one-tap": "one tap, the last layer's input, not three fused",
    "eagle3@one-step": "one step: no training-time test",
}


def eagle3_beside_eagle() -> str:
    """Tau of EAGLE, of EAGLE-3 and of EAGLE-3 without one of its parts, trained alike."""
    run = result("eagle3_beside_eagle")["methods"]
    found = ((label, run[f"{head}+chain,length=4"]) for head, label in EAGLES.items())
    positions = lambda each: " ".join(f"{share:.2f}" for share in each["acceptance_by_position"])
    rows = ([label, with_interval(each, "tau"), positions(each)] for label, each in found)
    return markdown(["head", "tau, 95 %", "acceptance by position"], rows)


HEADS = {
    "dflash": "DFlash",
    "markov": "DFlash with a Markov term",
    "causal": "JetSpec: causal blocks, forward KL",
    "dspark": "DSpark: rows draft the next position, Markov term, confidence head",
}
DRAFTS = {
    "chain,length=5": "chain of 5",
    "eagle2,total=8,depth=5,width=4": "tree of 8 nodes",
    "eagle2,total=32,depth=5,width=8": "tree of 32 nodes",
}


def block_heads() -> str:
    """Tau of block heads that were trained alike, over three seeds."""
    run = result("block_heads")["methods"]

    def cell(head: str, builder: str) -> str:
        found = [run[f"dflash@{head}-{seed}+{builder}"]["tau"] for seed in range(3)]
        return f"{sum(found) / 3:.2f} [{min(found):.2f}, {max(found):.2f}]"

    rows = ([label, *(cell(head, builder) for builder in DRAFTS)] for head, label in HEADS.items())
    return markdown(["head", *DRAFTS.values()], rows)


PAYS = (("of_plain_bound", 0.97), ("of_best_bound", 0.93))
"""What the simulation of methods that draft only where it pays should reach in every cell."""


def where_drafting_pays() -> str:
    """The lowest bounds of each method by batch size, and how many cells miss them."""
    run, cells = result("where_drafting_pays"), dict[tuple[str, str], dict[int, list[dict[str, float]]]]()
    for entry in run["entries"]:
        of = cells.setdefault((entry["head"], entry["method"]), {}).setdefault(entry["batch"], [])
        of += [dict(zip(run["cell"], values, strict=True)) for values in entry.values() if isinstance(values, list)]
    rows = [
        [
            f"`{head}`, `{method}`",
            *(", ".join(f"{min(cell[key] for cell in some):.2f}" for key, _ in PAYS) for some in batches.values()),
            ", ".join(str(sum(cell[key] < least for some in batches.values() for cell in some)) for key, least in PAYS),
        ]
        for (head, method), batches in cells.items()
    ]
    header = ["method", *(f"batch {batch}" for batch in next(iter(cells.values()))), "cells below 0.97, 0.93"]
    return markdown(header, iter(rows))


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "smollm2": smollm2,
    "builtin-methods": builtin_methods,
    "builtin-tau": builtin_tau,
    "n-alpha": n_alpha,
    "verification-costs": verification_costs,
    "builtin-h100": builtin_h100,
    "beside-others": beside_others,
    "eagle3-beside-eagle": eagle3_beside_eagle,
    "block-heads": block_heads,
    "where-drafting-pays": where_drafting_pays,
    "verify-float32": verify_tables.verify_float32,
    "plans": plan_tables.plans,
    "plans-over-floor": plan_tables.over_floors,
    "plans-with-options": plan_tables.with_options,
    "plans-of-small-models": plan_tables.small_models,
    "plans-with-split-rows": plan_tables.split_rows,
    "plans-of-an-evaluation": plan_tables.evaluation,
    "verify-rounded": verify_tables.verify_rounded,
    "flips-by-change": verify_tables.flips_by_change,
    "verify-smollm2": verify_tables.verify_smollm2,
    "verify-bfloat16": partial(verify_tables.verify_methods, "bfloat16"),
}


def made(page: str) -> str:
    """The page with its tables made anew. Raises KeyError if it names an unknown table."""
    if page.startswith("# The papers"):
        page = paper_tables.filled(page)
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}{block[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page differs")
    parser.add_argument("--keep", nargs=2, metavar=("RUN.json", "NAME"), help="keep a run as results/NAME.json first")
    parser.add_argument("--plans", nargs="+", type=Path, metavar="PLAN.json", help="keep these plans first")
    parser.add_argument("--papers", type=Path, metavar="FOLDER", help="keep these runs first")
    options = parser.parse_args()
    if options.keep:
        keep(Path(options.keep[0]), options.keep[1])
    if options.plans:
        plan_tables.keep(options.plans)
    if options.papers:
        paper_tables.keep(options.papers)
    differ, missing = [], list[str]()
    for name in PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        missing += [f"{name} lacks: {each}" for each in sentences.missing(name, page)]
        if (now := made(page)) != page:
            differ.append(name)
            if not options.check:
                path.write_text(now, encoding="utf-8")
    if missing:
        sys.exit("\n".join(missing))
    if differ and options.check:
        sys.exit(f"not made from benchmarks/results: {', '.join(differ)}; run: python benchmarks/tables.py")


if __name__ == "__main__":
    main()
