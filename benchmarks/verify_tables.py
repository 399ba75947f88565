"""Tables of the runs of `jaxspec verify`, for tables.py."""

from collections.abc import Sequence
from typing import Any

from benchmarks.plan_tables import RESULTS, markdown, result

ROUNDED = ("bfloat16", "float16", "int8")  # dtypes of runs of `jaxspec verify` in which near-ties flip
MOST_ROWS = 5  # of a table of a run's methods
ENOUGH_TOKENS = 5_000  # greedy tokens of a method that is shown: a rate of fewer is noise


def verify_run(name: object) -> tuple[str, dict[str, Any]]:
    """A link to a run of `jaxspec verify` on the builtin model, and the run."""
    return f"[{name}](../benchmarks/results/verify_builtin_{name}.json)", result(f"verify_builtin_{name}")


def verify_smollm2() -> str:
    """The verdicts on SmolLM2."""
    found = []
    for dtype in ("float32", "bfloat16"):
        run = result(f"verify_smollm2_{dtype}")
        methods = run["methods"]
        (*_, itself), (*_, others) = (
            flips([each for name, each in methods.items() if (name == "plain") == alone]) for alone in (True, False)
        )
        rates = f" (per 1,000 tokens: `plain` against itself {itself}, others {others})" if run["divergences"] else ""
        found.append(
            f"{dtype} ([JSON](../benchmarks/results/verify_smollm2_{dtype}.json)), {len(methods)} methods, "
            f"{run['greedy_tokens']:,} tokens, {run['divergences']} differences{rates}, "
            f"{run['unexplained_divergences']} unexplained, {run['verdict'].upper()}"
        )
    return f"`--target smollm2 --greedy`: {'; '.join(found)}.\n"


def verify_float32() -> str:
    """The runs of four seeds, and their totals."""
    runs = dict(verify_run(seed) for seed in range(4))
    p_values = {
        name: [each["p_value"] for each in run["methods"].values() if each["p_value"] is not None]
        for name, run in runs.items()
    }
    rows = (
        [
            *(name, str(len(run["methods"])), f"{run['greedy_tokens']:,}", f"{run['sampled_tokens']:,}"),
            *(str(run["divergences"]), str(len(p_values[name])), f"{min(p_values[name]):.2g}", run["verdict"].upper()),
        ]
        for name, run in runs.items()
    )
    header = ("seed", "methods", "greedy tokens", "sampled tokens", "differences", "tested distributions")
    greedy, sampled, differ, unexplained = (
        sum(run[key] for run in runs.values())
        for key in ("greedy_tokens", "sampled_tokens", "divergences", "unexplained_divergences")
    )
    smallest = min(min(1.0, len(found) * min(found)) for found in p_values.values())  # of each run, by Holm
    short = [
        each["found_deviation"]
        for run in runs.values()
        for each in run["methods"].values()
        if each["found_deviation"] is not None and each["found_deviation"] > run["deviation"]
    ]
    totals = (
        f"Together these are {greedy:,} greedy and {sampled:,} sampled tokens. Texts that differ from plain "
        f"decoding's: {differ}; unexplained: {unexplained}. With Holm's correction the smallest p-value of a run is "
        f"{smallest:.2g}."
    )
    if short:
        totals += (
            f" The tests with too few tokens ({len(short)}, in the runs that are NOT ENOUGH) would have found total "
            f"variations of {min(short):.3f} to {max(short):.3f}."
        )
    return f"{markdown([*header, 'smallest p', 'verdict'], rows)}\n{totals}\n"


def flips(some: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """Greedy tokens, flips, and flips per 1,000 tokens of several methods together."""
    tokens, found = (sum(each[key] for each in some) for key in ("greedy_tokens", "greedy_flips"))
    return f"{tokens:,}", f"{found:,}", f"{1000 * found / max(tokens, 1):.2f}"


def reread(plain: dict[str, Any]) -> str:
    """Flips per 1,000 tokens of plain decoding's text that was read again; older runs did not."""
    tokens = plain.get("reread_tokens", 0)
    return f"{1000 * plain['reread_flips'] / tokens:.2f}" if tokens else "–"


def runs_in(dtype: str) -> dict[str, dict[str, Any]]:
    """The runs in a dtype of ROUNDED, by a link: DTYPE, and DTYPE_SEED of other seeds than 0."""
    files = sorted(RESULTS.glob(f"verify_builtin_{dtype}*.json"))
    return dict(verify_run(file.stem.removeprefix("verify_builtin_")) for file in files)


def by_method(dtype: str) -> dict[str, list[dict[str, Any]]]:
    """What the runs in a dtype found of each method."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs_in(dtype).values():
        for method, each in run["methods"].items():
            found.setdefault(method, []).append(each)
    return found


def verify_rounded() -> str:
    """The runs in half precision and with int8 weights, and the gaps of their flips."""
    summary, gaps, between = [], [], []
    for dtype in ROUNDED:
        for link, run in runs_in(dtype).items():
            between = [f"to {edge:g}" for edge in run["gap_edges"]]
            plain = run["methods"]["plain"]
            others = [each for method, each in run["methods"].items() if method != "plain"]
            summary.append(
                [
                    *(link, str(len(others) + 1), f"{run['greedy_tokens']:,}", f"{run['noise']:.3f}"),
                    *(flips([plain])[2], reread(plain), flips(others)[2]),
                    *(str(run["unexplained_divergences"]), run["verdict"].upper()),
                ]
            )
        found = by_method(dtype)
        for label, some in (("`plain`", found["plain"]), ("all", [each for runs in found.values() for each in runs])):
            counts = [sum(column) for column in zip(*(each["greedy_gaps"] for each in some), strict=True)]
            gaps.append([dtype, label, *(f"{count:,}" for count in counts)])
    header = ("run", "methods", "greedy tokens", "noise", "flips per 1,000: `plain` in two batches", "read again")
    return (
        markdown([*header, "others", "unexplained", "verdict"], iter(summary))
        + "\nFlips by the gap between the target's two best logits:\n\n"
        + markdown(["dtype", "methods", *between, "more"], iter(gaps))
    )


def verify_methods(dtype: str) -> str:
    """Flips of each method with enough tokens, at most MOST_ROWS with the most flips, and the others in one row."""
    found = by_method(dtype)
    plain = found.pop("plain")
    rate = lambda method: -float(flips(found[method])[2])
    enough = lambda method: sum(each["greedy_tokens"] for each in found[method]) >= ENOUGH_TOKENS
    shown = sorted(filter(enough, found), key=rate)[:MOST_ROWS]
    rows = [["`plain` against itself", *flips(plain)]]
    rows += [[f"`{method}`", *flips(found[method])] for method in shown]
    if others := [runs for method, runs in found.items() if method not in shown]:
        rows.append([f"all {len(others)} others", *flips([each for runs in others for each in runs])])
    return markdown(["method", "greedy tokens", "flips", "per 1,000"], iter(rows))


def flips_by_change() -> str:
    """Flips in bfloat16 after each change to the arithmetic, as they were measured at the time."""
    rows = (
        [change, *(f"{rate:.2f}" for rate in rates.values())]
        for change, rates in result("flips_by_change")["flips_per_1000"].items()
    )
    return markdown(["", "`plain`, batch of 8 against 1", "`eagle+eagle2`", "`dflash`", "noise"], rows)
