"""`jaxspec calibrate`: measures the table of costs, stores it and prints it."""

import dataclasses
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxspec.checkpoint.loading import load
from jaxspec.costs.calibration import describe, keep, measure
from jaxspec.decoding.cost_table import CostTable
from jaxspec.drafters import DRAFTERS
from jaxspec.engine.head_weights import drafter_of, load_head
from jaxspec.evaluate.settings import Calibrate
from jaxspec.methods.method import Method, parse_method


def run(settings: Calibrate) -> None:
    """Measures the table of costs, stores it and prints it."""
    model = load(settings.target, settings.dtype, settings.devices.open(several=True), settings.quantize)
    method = method_of(model.path, settings.head)
    subject = describe(model, method, settings.batch_size)
    table = measure(model, method, load_head(model, method), settings.batch_size)
    keep(subject, table)
    show(table, Console())


def method_of(path: Path, head: str) -> Method:
    """The method to measure for a head.

    Args:
        head: a head's name or path, or DRAFTER[@HEAD] with optional settings.

    Raises:
        ValueError: it is none of these, or `plain`, which does not draft.
    """
    name = head.partition("@")[0].partition(",")[0].partition("+")[0]
    if name == "plain":
        raise ValueError("plain drafts nothing, so there is nothing to calibrate; name a drafter's head")
    if name in DRAFTERS:
        return parse_method(head)
    return dataclasses.replace(parse_method("ngram"), drafter=drafter_of(path, head), head=head)


def show(table: CostTable, console: Console) -> None:
    """Prints the table, in milliseconds and in units of s_t(1), the target's forward over one token per sequence."""
    shown = Table("piece", "nodes", "ms", "s_t(1)", box=None, pad_edge=False)
    rows = [("one token", 1, table.plain)]
    rows += [("a level drafted", nodes, seconds) for nodes, seconds in table.level]
    rows += [("verification", nodes, seconds) for nodes, seconds in table.verify]
    for name, nodes, seconds in rows:
        shown.add_row(name, str(nodes), f"{1e3 * seconds:.3f}", f"{seconds / table.plain:.3f}")
    console.print(shown)
