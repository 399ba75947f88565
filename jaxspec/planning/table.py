"""The table that `plan` prints."""

from functools import partial
from typing import Any

from rich.console import Console

from jaxspec.host.terminal import print_lines, print_table

MEMORY = {
    "weights": "weights of the target",
    "head_weights": "weights of the head",
    "kv": "keys and values",
    "state": "other state, padding",
    "temporaries": "temporaries, code",
    "prefill_temporaries": "the same of prefill",
    "total": "total",
    "limit": "available",
}


def show(found: dict[str, Any], console: Console) -> None:
    """Prints a plan; fits 80 columns."""
    line = partial(print_lines, console)
    device, settings, memory = found["device"], found["settings"], found["bytes_per_chip"]
    asked, padded = settings["batch_size"], found["padded_batch_size"]
    cuts = ", ".join(f"{axis}={size}" for axis, size in device["mesh"].items())
    line(f"{settings['model']} ({settings['quantize'] or settings['dtype']}), {found['resolved']}")
    line(f"on {device['chips']} x {device['name']} ({cuts}), {padded} x {settings['context']} tokens")
    if padded != asked:
        line(f"A batch of {asked} is padded to {padded} sequences.")
    line(f"from {found['from']}: {device['source']}")
    if found["note"]:
        line(found["note"])
    line("")
    rows = [(name, f"{memory[key] / 1e9:.3f}") for key, name in MEMORY.items() if memory[key] is not None]
    print_table(console, ["memory of a chip"], ["GB"], rows)
    spare = memory["spare"] / 1e9
    missing = f"{-spare:.2f} GB are missing" if spare < 0 else "the compiler found no room"
    line(f"It fits, with {spare:.2f} GB to spare." if found["fits"] else f"It does not fit: {missing}.")
    line("")
    _show_times(found, console)
    messages = [
        (each["phase"], each["kind"], f"{each['bytes'] / 1e3:.1f}", f"{each['count']:.0f}")
        for each in found["collectives"]
        if each["bytes"] >= 1024
    ]
    if found["collectives"]:
        line("")
        print_table(console, ["messages", "kind"], ["kB", "times"], messages)
    if found["slowest_operations"]:
        line("")
        slowest = map(_operation, found["slowest_operations"])
        print_table(console, ["slowest operations", "kind", "result"], ["times", "MB", "us"], slowest)
    for fault in found["faults"]:
        line(f"the loop should not do this: {fault}", style="red")
    line("")
    line(
        f"Floors with messages: {1e3 * sum(found['seconds_per_round'].values()):.2f} ms per round, "
        f"{1e3 * found['plain_seconds']:.2f} ms per round of plain decoding. So the method is faster if tau is above "
        f"{found['break_even_tau']:.2f}."
    )
    if found["speedup"] is not None:
        line(f"At a tau of {found['tau']:.2f}: {found['speedup']:.2f} times as fast as plain decoding.")
        if found["estimated_speedup"]:
            low, high, scheduled = *found["estimated_speedup"], found["scheduled_speedup"]
            line(f"As XLA estimates: {low:.2f} to {high:.2f} times as fast, {scheduled:.2f} as scheduled.")
    if found["in_fast_memory"]:
        arrays = ", ".join(found["in_fast_memory"])
        line(f"Kept in fast memory during the whole loop, where a larger model's arrays may not fit: {arrays}.")
    line("Floors are lower bounds by the data sheets. Nothing was measured.")


def _show_times(found: dict[str, Any], console: Console) -> None:
    """Prints work, floors and estimates of drafting, verification and prefill."""
    over, scheduled, prefill = found["estimate_over_floor"], found["scheduled_over_floor"], found["prefill"]
    ms = lambda seconds: f"{1e3 * (seconds or 0):.2f}"

    def row(name: str, part: str, flops: int | float, read: str, messages: str, took: list[float] | None):
        cells = name, f"{flops / 1e9:.2f}", read, messages, ms(found["floor_seconds"][part])
        if over is None:  # nothing was estimated
            return cells
        if took is None or over[part] is None:
            return *cells, "", "", ""
        low, high = over[part]
        return *cells, f"{ms(took[0])}-{ms(took[1])}", f"{low:.2f}-{high:.2f}", f"{scheduled[part]:.2f}"

    def of_round(name: str, part: str):
        read, messages = found["bytes_per_round"][part] / 1e9, found["messages_per_round"][part]
        took = over and found["estimated_seconds_per_round"][part]
        return row(name, part, found["flops_per_round"][part], f"{read:.3f}", f"{messages:.0f}", took)

    rows = [
        of_round(f"drafting {found['levels_per_round']:.3g} levels", "draft"),
        of_round(f"verifying {found['nodes_per_round']:.3g} nodes", "verify"),
    ]
    if prefill:
        name = f"reading {prefill['tokens']} tokens"
        rows.append(row(name, "prefill", prefill["flops"], "", "", prefill["estimated_seconds"]))
    titles = "GFLOP", "GB read", "messages", "floor ms", *(("estimate ms", "of floor", "scheduled") if over else ())
    print_table(console, ["on each chip"], titles, rows)


def _operation(each: dict[str, Any]) -> tuple[str, ...]:
    """The cells of an operation of --explain."""
    path = "/".join(each["path"].split("/")[-2:]) or "(added by the compiler)"
    numbers = str(each["times"]), f"{each['times'] * each['bytes'] / 1e6:.2f}", f"{1e6 * each['seconds']:.1f}"
    return f"{each['part']}: {path}", each["kind"], each["result"], *numbers
