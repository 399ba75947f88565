"""The verdict from the cases of a run, as JSON and as text, and its statistical tests, corrected for their number.

Under rejection sampling a text may differ from plain decoding's. Then each of its tokens is a draw from known
probabilities: the target's, given the text before it. Sort the vocabulary by these probabilities, the likeliest token
first. A token's *place* is the probability of all tokens before it, plus a random share of its own. If the method is
lossless, places are uniform on [0, 1] and independent of each other, for all prompts and temperatures. So all tokens of
a run are one sample of one known distribution. Pearson's chi-square test compares the numbers of places per tenth with
it.

A method with another distribution moves probability between tenths. Let d be the total variation distance that is
moved, on average over the texts. By the Cauchy-Schwarz inequality, the noncentrality of the statistic for n tokens is
at least 4 n d². This gives the number of tokens that are needed to detect a deviation.
"""

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any

import numpy as np
from rich.console import Console
from scipy import optimize, stats

from jaxspec.host.terminal import print_lines, print_table
from jaxspec.verify.cases import Result, joined
from jaxspec.verify.exact import NOISE_SIZES, TENTHS
from jaxspec.verify.workloads import DISTRIBUTION, GREEDY, PLAIN

ROWS = 40  # most methods and failures that are printed
ALPHA = 0.01  # probability that any of the tests rejects a lossless library
POWER = 0.99
DEVIATION = 0.01  # total variation that the tests must detect with this power
FEWEST = 50  # fewest places for which the chi-square distribution is a good approximation
PASS, FAIL, NOT_ENOUGH = "pass", "fail", "not enough"
GAPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # between them the gaps of flipped near-ties are counted
TOTALS = ("greedy_tokens", "sampled_tokens", "divergences", "unexplained_divergences")  # also summed over all methods


def summarise(results: Sequence[Result], noise: float, exact: bool, command: str) -> dict[str, Any]:
    """The values of the JSON, without the run's description.

    Args:
        noise: rounding noise of the target's logits.
        exact: whether the target is float32 and not quantised, so that near-ties are too rare to test.
        command: `jaxspec verify` with the options that cases depend on; failures append --only to it.
    """
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.case.method, []).append(result)
    methods = {name: _counts(several) for name, several in by_method.items()}
    places = {name: p for name, values in methods.items() if (p := values["p_value"]) is not None}
    rates = {} if exact else _rates(methods)
    tests = {(DISTRIBUTION, name): p for name, p in places.items()} | {("ties", name): p for name, p in rates.items()}
    wrong = rejected(tests)
    failures: list[dict[str, str]] = []
    for name, values in methods.items():
        if values["sampled_by_distribution"]:
            values["found_deviation"] = found_deviation(sum(values["tenths"]), len(tests))
        values["near_tie_p_value"] = rates.get(name)
        failures += [_failure(command, [result], why) for result, why in _faults(by_method[name])]
        several = [result for result in by_method[name] if result.case.kind == DISTRIBUTION]
        if (DISTRIBUTION, name) in wrong:
            failures.append(_failure(command, several, f"not the target's distribution (p = {places[name]:.1e})"))
        if ("ties", name) in wrong:
            several = [result for result in by_method[name] if result.divergences]
            ours, theirs = (1000 * n / max(of, 1) for n, of in (near_ties(values), _plain_flips(methods[PLAIN])))
            why = f"near-ties flip {ours:.2f} times per thousand tokens, in plain decoding {theirs:.2f} times"
            for kind in dict.fromkeys(one.case.kind for one in several):
                failures.append(_failure(command, [one for one in several if one.case.kind == kind], why))
    by_places = [values for values in methods.values() if values["sampled_by_distribution"]]
    enough = all(values["found_deviation"] <= DEVIATION for values in by_places)
    return {
        "passed": not failures,
        "verdict": FAIL if failures else PASS if enough else NOT_ENOUGH,
        "noise": noise,
        "alpha": ALPHA,
        "power": POWER,
        "deviation": DEVIATION,
        "tests": len(tests),
        "tokens_needed": tokens_needed(len(tests)),
        "gap_edges": list(GAPS),
        **{key: sum(values[key] for values in methods.values()) for key in TOTALS},
        "methods": methods,
        "failures": failures,
    }


def _counts(results: Sequence[Result]) -> dict[str, Any]:
    """Totals over all cases of one method."""
    by_places = [result for result in results if result.case.kind == DISTRIBUTION]
    tenths = [sum(column) for column in zip(*(result.tenths for result in by_places if result.tenths), strict=True)]
    greedy = sum(result.tokens for result in results if result.case.kind == GREEDY)
    flips = [each["gap"] for result in results if result.case.kind == GREEDY for each in result.divergences]
    tokens, placed = sum(result.tokens for result in results), sum(tenths)
    divergences = sum(len(result.divergences) for result in results)
    unexplained = sum(result.faults for result in results)
    explained = sum(each["explained"] for result in results for each in result.divergences)
    return {
        "cases": len(results),
        "greedy_tokens": greedy,
        "sampled_tokens": tokens - greedy,
        "divergences": divergences,
        "unexplained_divergences": unexplained,
        "compared_tokens": tokens - placed,
        "near_ties_a_thousand": 1000 * explained / max(tokens - placed, 1),
        "greedy_flips": len(flips),
        "greedy_flips_a_thousand": 1000 * len(flips) / max(greedy, 1),
        "reread_tokens": sum(result.reread[0] for result in results),
        "reread_flips": sum(result.reread[1] for result in results),
        "greedy_gaps": np.bincount(np.searchsorted(GAPS, flips, "right"), minlength=len(GAPS) + 1).tolist(),
        "sampled_by_distribution": bool(by_places),
        "tenths": tenths,
        "p_value": chi_square(tenths),
        "found_deviation": None,
    }


def _rates(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """p-values: near-ties flip no more often in a method's text than in plain decoding's (`_plain_flips`)."""
    own = _plain_flips(methods[PLAIN]) if PLAIN in methods else (0, 0)
    tested = {name: more_often(*near_ties(values), *own) for name, values in methods.items() if name != PLAIN}
    return {name: p for name, p in tested.items() if p is not None}


def near_ties(values: Mapping[str, Any]) -> tuple[int, int]:
    """A method's flipped near-ties, and the compared tokens."""
    return round(values["near_ties_a_thousand"] * values["compared_tokens"] / 1000), values["compared_tokens"]


def _plain_flips(values: Mapping[str, Any]) -> tuple[int, int]:
    """`near_ties` of plain decoding: between its batches, or with its texts read again, whichever flips more often.

    On some CPUs a batch of eight and one of one have the same rounding, and a forward over several tokens has another.
    """
    either = [near_ties(values), (values["reread_flips"], values["reread_tokens"])]
    return max(either, key=lambda pair: pair[0] / max(pair[1], 1))


def _faults(results: Sequence[Result]) -> list[tuple[Result, str]]:
    """The cases of a method that failed by themselves, not in a statistical test, and why."""
    failed = []
    for result in results:
        if result.error is not None:
            failed.append((result, result.error))
        elif result.faults:
            unexplained = next((each for each in result.divergences if not each["explained"]), None)
            if unexplained is not None:
                prompt, position = unexplained["prompt"], unexplained["position"]
                what = "differs from plain decoding's text"
            else:
                (prompt, position), what = result.impossible[0], "has a token that the target cannot generate"
            failed.append((result, f"{what} at token {position} of text {prompt}, and rounding does not explain it"))
    return failed


def _failure(command: str, results: Sequence[Result], why: str) -> dict[str, str]:
    cases = joined([result.case for result in results])
    return {"method": results[0].case.method, "cases": cases, "why": why, "command": f"{command} --only '{cases}'"}


def show(summary: Mapping[str, Any], console: Console) -> None:
    """Prints the verdict."""
    methods = summary["methods"]
    columns = ("greedy", "per\n1,000", "sampled", "explained", "un-\nexplained", "p", "TV found")
    shown = sorted(methods, key=lambda name: not methods[name]["unexplained_divergences"])[:ROWS]
    print_table(console, ["method"], columns, [[name, *_cells(methods[name])] for name in shown])
    reds = [f"{failure['method']}: {failure['why']}\n  {failure['command']}" for failure in summary["failures"]]
    lines = []
    if len(methods) > ROWS:
        lines.append(f"... and {len(methods) - ROWS} more methods; --json lists all")
    lines += [
        f"\n{summary['greedy_tokens']:,} greedy and {summary['sampled_tokens']:,} sampled tokens of {len(methods)} "
        f"methods. {summary['divergences']} texts differ from plain decoding's; unexplained: "
        f"{summary['unexplained_divergences']}.",
        f"A near-tie explains a difference if its logits differ by at most {2 * summary['noise']:.1e}: twice the "
        "largest difference between two evaluations of the same text by this target.",
    ]
    lines += _flip_lines(methods, summary["gap_edges"])
    if summary["tests"]:
        lines.append(
            f"p: {summary['tests']} tests with Holm's correction; the probability of any false alarm is "
            f"{summary['alpha']:.0%}. TV found: the total variation that the test detects with {summary['power']:.0%} "
            f"probability; for {summary['deviation']} a method needs {summary['tokens_needed']:,} tokens."
        )
    print_lines(console, *lines)
    print_lines(console, *reds[:ROWS], style="red")
    if len(reds) > ROWS:
        print_lines(console, f"... and {len(reds) - ROWS} more failures")
    if summary["verdict"] == FAIL:
        print_lines(console, "FAIL: not lossless here", style="bold red")
    elif summary["verdict"] == NOT_ENOUGH:
        short = sum((values["found_deviation"] or 0) > summary["deviation"] for values in methods.values())
        why = (
            f"NOT ENOUGH: nothing unexplained was found, but {short} methods have too few tokens for their "
            f"distribution test to detect a total variation of {summary['deviation']}; give more --minutes"
        )
        print_lines(console, why, style="bold yellow")
    else:
        print_lines(console, "PASS: nothing unexplained was found", style="bold green")


def _flip_lines(methods: Mapping[str, Mapping[str, Any]], edges: Sequence[float]) -> list[str]:
    """How often greedy texts differ, of plain decoding against itself and of all other methods, and by which gaps."""
    itself, others = {PLAIN: methods[PLAIN]} if PLAIN in methods else {}, dict(methods)
    others.pop(PLAIN, None)
    lines = []
    for name, group in ((f"{PLAIN} in batches of eight and of one", itself), ("other methods and plain", others)):
        count, tokens = (sum(values[key] for values in group.values()) for key in ("greedy_flips", "greedy_tokens"))
        if count:
            counts = np.sum([values["greedy_gaps"] for values in group.values()], axis=0).tolist()
            names = [*(f"below {edge:g}" for edge in edges), "more"]
            gaps = ", ".join(f"{gap} {each}" for gap, each in zip(names, counts, strict=True) if each)
            lines.append(f"Greedy, {name}: {1000 * count / tokens:.2f} flips per 1,000 tokens; their gaps: {gaps}.")
    if again := sum(values["reread_tokens"] for values in itself.values()):
        rate = 1000 * sum(values["reread_flips"] for values in itself.values()) / again
        lines.append(f"Greedy, {PLAIN} read again by forwards over {NOISE_SIZES[0]} tokens: {rate:.2f} flips.")
    return lines


def _cells(values: Mapping[str, Any]) -> list[str]:
    p_value, deviation = values["p_value"], values["found_deviation"]
    explained = values["divergences"] - values["unexplained_divergences"]
    return [
        f"{values['greedy_tokens']:,}",
        f"{values['greedy_flips_a_thousand']:.2f}" if values["greedy_flips"] else "",
        f"{values['sampled_tokens']:,}",
        str(max(explained, 0)),
        str(values["unexplained_divergences"]),
        "" if p_value is None else f"{p_value:.2g}",
        "" if deviation is None else f"{deviation:.3f}",
    ]


def chi_square(counts: Sequence[int]) -> float | None:
    """p-value of the hypothesis that places are uniform, from the counts in each tenth; None below `FEWEST` places."""
    if sum(counts) < FEWEST:
        return None
    return float(stats.chisquare(np.asarray(counts, float)).pvalue)


def more_often(ours: int, our_tokens: int, theirs: int, their_tokens: int) -> float | None:
    """One-sided p-value of the hypothesis that near-ties flip no more often in our tokens than in theirs.

    Given the total number of flips, the number among ours is binomial. None without tokens.
    """
    if not (our_tokens and their_tokens):
        return None
    return float(stats.binom.sf(ours - 1, ours + theirs, our_tokens / (our_tokens + their_tokens)))


def rejected(p_values: Mapping[Any, float]) -> set[Any]:
    """The hypotheses that Holm's method rejects. It rejects a true one with a probability of at most `ALPHA`."""
    names = set()
    for at, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > ALPHA / (len(p_values) - at):
            break
        names.add(name)
    return names


def tokens_needed(tests: int, deviation: float = DEVIATION) -> int:
    """Number of tokens with which a method's test detects this total variation, corrected for the number of tests."""
    return ceil(_noncentrality(tests) / (4 * deviation**2))


def found_deviation(tokens: int, tests: int) -> float:
    """The smallest total variation that a test with this many tokens detects; at most 1."""
    return min(1.0, sqrt(_noncentrality(tests) / (4 * tokens))) if tokens else 1.0


def _noncentrality(tests: int) -> float:
    """The noncentrality with which a chi-square test at Holm's strictest level has the power `POWER`."""
    freedom = TENTHS - 1
    critical = stats.chi2.isf(ALPHA / max(tests, 1), freedom)
    missed = lambda size: stats.ncx2.sf(critical, freedom, size) - POWER
    return optimize.root_scalar(missed, bracket=(1e-3, 1e4)).root
