"""The table that `plan` prints."""

from typing import Any

from rich.console import Console
from rich.table import Table

MEMORY = {
    "weights": "weights of the target",
    "head_weights": "weights of the head",
    "kv": "keys and values",
    "state": "other state, padding",
    "temporaries": "temporaries, code",
    "total": "total",
    "limit": "available",
}


def show(found: dict[str, Any], console: Console) -> None:
    """Prints a plan; fits 80 columns."""

    def line(text: str, style: str | None = None) -> None:
        console.print(text, markup=False, style=style)

    device, settings = found["device"], found["settings"]
    cuts = ", ".join(f"{axis}={size}" for axis, size in device["mesh"].items())
    weights = settings["quantize"] or settings["dtype"]
    line(f"{settings['model']} ({weights}), {found['resolved']}")
    line(f"on {device['chips']} x {device['name']} ({cuts}), {settings['batch_size']} x {settings['context']} tokens")
    line(f"from {found['from']}: {device['source']}")
    if found["note"]:
        line(found["note"])
    line("")
    _memory(found, console)
    line(_verdict(found))
    line("")
    _time(found, console)
    _messages(found, console)
    _slowest(found, console)
    for fault in found["faults"]:
        line(f"the loop should not do this: {fault}", "red")
    line("")
    line(
        f"Floors with messages: {1e3 * sum(found['seconds_per_round'].values()):.2f} ms per round, "
        f"{1e3 * found['plain_seconds']:.2f} ms per round of plain decoding. So the method is faster if tau is above "
        f"{found['break_even_tau']:.2f}."
    )
    if found["speedup"] is not None:
        line(f"At a tau of {found['tau']:.2f}: {found['speedup']:.2f} times as fast as plain decoding.")
        if found["estimated_speedup"]:
            low, high = found["estimated_speedup"]
            line(
                f"By the compiler's estimates: {low:.2f} to {high:.2f} times as fast, "
                f"{found['scheduled_speedup']:.2f} as scheduled."
            )
    if found["in_fast_memory"]:
        arrays = ", ".join(found["in_fast_memory"])
        line(f"Kept in fast memory during the whole loop, where a larger model's arrays may not fit: {arrays}.")
    line("Floors are lower bounds by the data sheets. Nothing was measured.")


def _verdict(found: dict[str, Any]) -> str:
    spare = found["bytes_per_chip"]["spare"] / 1e9
    if found["fits"]:
        return f"It fits, with {spare:.2f} GB to spare."
    return (
        f"It does not fit: {-spare:.2f} GB are missing."
        if spare < 0
        else "It does not fit: the compiler found no room."
    )


def _memory(found: dict[str, Any], console: Console) -> None:
    table = Table("memory of a chip", box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("GB", justify="right")
    for key, name in MEMORY.items():
        table.add_row(name, f"{found['bytes_per_chip'][key] / 1e9:.3f}")
    console.print(table)


def _time(found: dict[str, Any], console: Console) -> None:
    compiled = found["estimate_over_floor"] is not None
    table = Table("on each chip", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for title in (
        "GFLOP",
        "GB read",
        "messages",
        "floor ms",
        *(("estimate ms", "of floor", "scheduled") if compiled else ()),
    ):
        table.add_column(title, justify="right")
    names = {
        "draft": f"drafting {found['levels_per_round']:.3g} levels",
        "verify": f"verifying {found['nodes_per_round']:.3g} nodes",
    }
    for part, name in names.items():
        floor = found["floor_seconds"][part]
        table.add_row(
            name,
            f"{found['flops_per_round'][part] / 1e9:.2f}",
            f"{found['bytes_per_round'][part] / 1e9:.3f}",
            f"{found['messages_per_round'][part]:.0f}",
            f"{1e3 * (floor or 0):.2f}",
            *(_estimate(found, part, found["estimated_seconds_per_round"][part]) if compiled else ()),
        )
    if prefill := found["prefill"]:
        gflop, floor = f"{prefill['flops'] / 1e9:.2f}", f"{1e3 * prefill['floor_seconds']:.2f}"
        ends = _estimate(found, "prefill", prefill["estimated_seconds"]) if compiled else ()
        table.add_row(f"reading {prefill['tokens']} tokens", gflop, "", "", floor, *ends)
    console.print(table)


def _estimate(found: dict[str, Any], part: str, ends: list[float] | None) -> tuple[str, ...]:
    """Cells for an interval in ms, for its ratio to the floor, and for the ratio of the time as scheduled."""
    over, scheduled = found["estimate_over_floor"][part], found["scheduled_over_floor"][part]
    if ends is None or over is None:
        return "", "", ""
    return f"{1e3 * ends[0]:.2f}-{1e3 * ends[1]:.2f}", f"{over[0]:.2f}-{over[1]:.2f}", f"{scheduled:.2f}"


def _slowest(found: dict[str, Any], console: Console) -> None:
    """Prints the operations of --explain."""
    if not found["slowest_operations"]:
        return
    table = Table("slowest operations", "kind", "result", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for title in ("times", "MB", "us"):
        table.add_column(title, justify="right")
    for each in found["slowest_operations"]:
        path = "/".join(each["path"].split("/")[-2:]) or "(added by the compiler)"
        moved = each["times"] * each["bytes"] / 1e6
        numbers = (str(each["times"]), f"{moved:.2f}", f"{1e6 * each['seconds']:.1f}")
        table.add_row(f"{each['part']}: {path}", each["kind"], each["result"], *numbers)
    console.print("")
    console.print(table)


def _messages(found: dict[str, Any], console: Console) -> None:
    if not found["collectives"]:
        return
    table = Table("messages", "kind", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for title in ("kB", "times"):
        table.add_column(title, justify="right")
    for each in found["collectives"]:
        if each["bytes"] >= 1024:
            table.add_row(each["phase"], each["kind"], f"{each['bytes'] / 1e3:.1f}", f"{each['count']:.0f}")
    console.print("")
    console.print(table)
