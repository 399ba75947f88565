"""The table that a plan ends with."""

from typing import Any

from rich.console import Console
from rich.table import Table

MEMORY = {
    "weights": "weights of the target",
    "head_weights": "weights of the head",
    "kv": "keys and values",
    "state": "other state, padding",
    "temporaries": "temporaries, code",
    "total": "together",
    "limit": "there are",
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
    for fault in found["faults"]:
        line(f"the loop should not do this: {fault}", "red")
    line("")
    line(
        f"A round of plain decoding takes {1e3 * found['plain_seconds']:.2f} ms, so this is faster above a tau of "
        f"{found['break_even_tau']:.2f}."
    )
    if found["speedup"] is not None:
        line(f"With a tau of {found['tau']:.2f}: {found['speedup']:.2f} times as fast as plain decoding.")
    line("Times are the least that the data sheets allow.")


def _verdict(found: dict[str, Any]) -> str:
    spare = found["bytes_per_chip"]["spare"] / 1e9
    if found["fits"]:
        return f"It fits, with {spare:.2f} GB to spare."
    return (
        f"It does not fit: {-spare:.2f} GB too much." if spare < 0 else "It does not fit: the compiler found no room."
    )


def _memory(found: dict[str, Any], console: Console) -> None:
    table = Table("memory of a chip", box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("GB", justify="right")
    for key, name in MEMORY.items():
        table.add_row(name, f"{found['bytes_per_chip'][key] / 1e9:.3f}")
    console.print(table)


def _time(found: dict[str, Any], console: Console) -> None:
    table = Table("a round, on each chip", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for title in ("GFLOP", "GB read", "messages", "their ms", "ms"):
        table.add_column(title, justify="right")
    names = {
        "draft": f"drafting {found['levels_per_round']:.3g} levels",
        "verify": f"verifying {found['nodes_per_round']:.3g} nodes",
    }
    for part, name in names.items():
        table.add_row(
            name,
            f"{found['flops_per_round'][part] / 1e9:.2f}",
            f"{found['bytes_per_round'][part] / 1e9:.3f}",
            f"{found['messages_per_round'][part]:.0f}",
            f"{1e3 * found['seconds_of_messages'][part]:.2f}",
            f"{1e3 * found['seconds_per_round'][part]:.2f}",
        )
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
