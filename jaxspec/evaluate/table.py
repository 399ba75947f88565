"""The tables that `bench` prints."""

from collections.abc import Mapping
from typing import Any

from rich import filesize
from rich.console import Console

from jaxspec.engine.statistics import ratio
from jaxspec.evaluate.uncertainty import brackets, in_words, p_in_words
from jaxspec.host.terminal import print_lines, print_table

Methods = Mapping[str, Mapping[str, Any]]
COLUMNS = {
    "tok/s": ("tokens_per_second", ".1f"),
    "speed-\nup": ("speedup", ".2f"),
    "tau": ("tau", ".2f"),
    "tau\ndrafted": ("tau_drafted", ".2f"),
    "accep-\ntance": ("acceptance_rate", ".2f"),
    "nodes": ("nodes_per_round", ".1f"),
    "mod-\nelled": ("modelled_speedup", ".2f"),
    "flat": ("flat_speedup", ".2f"),
}
DRAFTS = {
    "drafted": ("nodes_drafted_per_round", ".1f"),
    "verified": ("nodes_per_round", ".1f"),
    "depth": ("depth_per_round", ".1f"),
    "ECE": ("expected_calibration_error", ".3f"),
}
POSITIONS = 8  # most positions that are shown
FAR = 0.15  # shares of the time are left out if the prediction is off by more
NOTES = (
    "modelled: the speedup predicted from this run's counts and the measured cost of each part of a round.",
    "flat: the same for a memory-bound device, where time is proportional to the bytes of weights that are read, so "
    "that verifying a tree costs as much as one token; modelled, not measured.",
    "95 %: bootstrap intervals over the questions. tau uncut: the last round of a text counted whole, as EAGLE does. "
    "p: Wilcoxon's signed-rank test over the questions; unclear: no difference was found, but more questions may show "
    "one.",
    "drafts per round: nodes drafted, nodes verified, and levels, each the mean over the rounds. ECE: expected "
    "calibration error of the drafts' confidence. accepted at position: of all rounds that drafted, as in vLLM.",
)


def show(methods: Methods, target_seconds: Mapping[str, float] | None, console: Console) -> None:
    """Prints a row for each method in bench's JSON, and the parts of its time. The table fits 80 columns."""
    differ = {name: values["divergences"] for name, values in methods.items()}
    counts = {name: "–" if found is None else str(len(found)) for name, found in differ.items()}
    rows = [[name, *numbers(values, COLUMNS), counts[name]] for name, values in methods.items()]
    print_table(console, ["method"], [*COLUMNS, "diver-\ngences"], rows)
    for name, values in methods.items():
        if values["unexplained_divergences"]:
            why = "left plain decoding's text where rounding does not explain it: it is not lossless here"
            print_lines(console, f"{name} {why}", style="red")
    _show_uncertainty(methods, console)
    _show_drafts(methods, console)
    _show_quality(methods, console)
    if target_seconds is not None:
        _explain(methods, target_seconds, console)


def numbers(values: Mapping[str, Any], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    """A method's cells; an unknown number is a dash."""
    shown = ((values[key], form) for key, form in columns.values())
    return ["–" if value is None else format(value, form) for value, form in shown]


def show_weights(found: Mapping[str, Any], console: Console) -> None:
    """Prints the size of the target's weights and, on an accelerator, the bandwidth at which each method read them."""
    weights, quantized = found["weights"], found["settings"]["quantize"]
    kinds = f"{found['dtype']}, {quantized} kernels" if quantized else found["dtype"]
    total, read = (filesize.decimal(weights[name]) for name in ("bytes", "read_bytes"))
    lines = [f"The target's weights ({kinds}) take {total}; a forward reads {read} of them."]
    if not found["device"].startswith("cpu"):
        speeds = (f"{name}: {values['gigabytes_per_second']:.0f}" for name, values in found["methods"].items())
        experts = ", every expert counted, though few tokens use few of them" if weights["expert_bytes"] else ""
        what = f"Reading them once a round makes, in GB/s (KV cache and drafting left out{experts}):"
        lines.append("  ".join([what, *speeds]))
    print_lines(console, *lines)


def _show_uncertainty(methods: Methods, console: Console) -> None:
    """Prints intervals of speedup and tau, and compares each method with the fastest. One question has no interval."""
    if all(values["tau_interval"] is None for values in methods.values()):
        return
    rows = []
    for name, values in methods.items():
        compared, rival = ("fastest", ""), values["against_fastest"]
        if rival is not None:
            p_value = rival["p_value"]
            compared = in_words(rival["ratio_interval"], p_value, "slower", "faster"), p_in_words(p_value)
        intervals = (brackets(values["speedup_interval"]), brackets(values["tau_interval"]))
        rows.append([name, *intervals, format(values["tau_uncut"], ".2f"), *compared])
    titles = ["speedup,\n95 %", "tau,\n95 %", "tau\nuncut", "vs. the\nfastest", "\np"]
    print_table(console, ["\nuncertainty"], titles, rows)


def _show_drafts(methods: Methods, console: Console) -> None:
    rows = [[name, *numbers(values, DRAFTS)] for name, values in methods.items() if values["nodes_drafted_per_round"]]
    if rows:
        print_table(console, ["\ndrafts per round"], [f"\n{title}" for title in DRAFTS], rows)
        rates = {row[0]: methods[row[0]]["unconditional_acceptance_by_position"][:POSITIONS] for row in rows}
        rows = [[name, *(format(rate, ".2f") for rate in ours)] for name, ours in rates.items()]
        positions = range(max(map(len, rates.values())))
        print_table(console, ["\naccepted at position"], [f"\n{at}" for at in positions], rows)


def _show_quality(methods: Methods, console: Console) -> None:
    scored = {name: values["quality"] for name, values in methods.items() if values["quality"]}
    if scored:
        names = list(next(iter(scored.values())))
        rows = [[method, *(format(scores[name], ".3f") for name in names)] for method, scores in scored.items()]
        print_table(console, ["\nquality"], [f"\n{name}" for name in names], rows)


def _explain(methods: Methods, target_seconds: Mapping[str, float], console: Console) -> None:
    """Prints the costs of drafting and verification, the parts of each method's time, and the fastest method."""
    drafting = {name: values for name, values in methods.items() if values["draft_cost"]}
    if not drafting:
        return
    one = target_seconds["1"]
    table = "  ".join(f"{size}: {seconds / one:.2f}" for size, seconds in target_seconds.items())
    levels = "  ".join(f"{name}: {values['draft_cost']:.2f}" for name, values in drafting.items())
    lines = [
        f"\nOne forward of the target takes s_t = {one * 1e3:.2f} ms. Verifying n tokens, in s_t:  {table}",
        f"One drafted level, in s_t:  {levels}",
        "Time of decoding: measured, predicted from the cost of each part, and the share of each part:",
    ]
    for name, values in methods.items():
        predicted, measured = values["predicted_seconds"], values["decode_seconds"]
        off = ratio(predicted, measured) - 1
        shares = (f"{part} {100 * ratio(spent, measured):.0f} %" for part, spent in values["breakdown"].items())
        far = "too far apart for shares: perhaps other work disturbed one of the two"
        parts = far if abs(off) > FAR else ", ".join(shares)
        lines.append(f"  {name}: {measured:.2f} s, predicted {predicted:.2f} s ({off:+.0%}); {parts}")
    print_lines(console, *lines, fastest(drafting), *NOTES)


def fastest(drafting: Methods) -> str:
    """A sentence about the fastest method. If that is plain decoding, the fastest method that drafts follows."""
    best, values = max(drafting.items(), key=lambda item: item[1]["speedup"])
    slower = "plain decoding. The best method that drafts is " if values["speedup"] <= 1 else ""
    return (
        f"Fastest: {slower}{best}, {values['speedup']:.2f}x plain. Each round drafts "
        f"{values['depth_per_round']:.1f} levels of {values['draft_cost']:.2f} s_t, verifies "
        f"{values['nodes_per_round'] + 1:.1f} tokens for at most {values['verify_cost']:.2f} s_t, and commits "
        f"{values['tau']:.2f} tokens."
    )
