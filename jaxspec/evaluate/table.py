"""The table that a run ends with."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = {
    "tok/s": ("tokens_per_second", ".1f"),
    "speed-\nup": ("speedup", ".2f"),
    "tau": ("tau", ".2f"),
    "tau\ndrafted": ("tau_drafted", ".2f"),
    "accep-\ntance": ("acceptance_rate", ".2f"),
    "nodes/\nround": ("nodes_per_round", ".1f"),
    "modelled\nspeedup": ("modelled_speedup", ".2f"),
}


def show(methods: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Prints a row a method; fits 80 columns."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for title in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("diver-\ngences", justify="right", no_wrap=True)
    for name, values in methods.items():
        table.add_row(name, *(format(values[key], form) for key, form in COLUMNS.values()), _divergences(values))
    console.print(table, markup=False)
    for name, values in methods.items():
        if values["unexplained_divergences"]:
            console.print(
                f"{name} left plain decoding's text where rounding does not explain it: it is not lossless here",
                style="red",
            )
    if any(values["divergences"] is None for values in methods.values()):
        console.print("Sampled texts differ by design, so divergences are not counted.")


def _divergences(values: Mapping[str, Any]) -> str:
    return "–" if values["divergences"] is None else str(len(values["divergences"]))
