"""Tables as in the EDD paper: drafters with one builder, and builders with one drafter."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxspec.builders import BUILDERS
from jaxspec.evaluate.table import numbers
from jaxspec.methods.method import Method, parse_method

COLUMNS = {
    "speedup": ("speedup", ".2f"),
    "modelled": ("modelled_speedup", ".2f"),
    "acceptance": ("acceptance_rate", ".2f"),
    "tau drafted": ("tau_drafted", ".2f"),
    "tau": ("tau", ".2f"),
    "nodes": ("nodes_per_round", ".1f"),
    "depth": ("depth_per_round", ".1f"),
}
"""The paper's columns speedup, α, and τ, which excludes the bonus token there (`tau drafted`); then the numbers in its
text."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Methods that differ in one part only.

    Attributes:
        role: the part that differs: `drafter` or `builder`.
        shared: the parts in common, as typed.
        names: the methods, as typed.
    """

    role: str
    shared: str
    names: tuple[str, ...]


def groups(names: Sequence[str]) -> list[Group]:
    """All groups of two or more methods with equal builder and controller, then with equal drafter and controller.

    Two chains of different lengths are the same builder, so they are no comparison of builders.
    """
    parsed = {name: parse_method(name) for name in names if name != "plain"}
    return [*_by("drafter", parsed), *_by("builder", parsed)]


def show(methods: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Prints one table for each group."""
    for group in groups(list(methods)):
        title = {"drafter": "Drafters under", "builder": "Builders for"}[group.role]
        table = Table(group.role, box=None, header_style="bold", padding=(0, 1, 0, 0))
        for column in COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for name in group.names:
            drafter, builder, _ = typed(name)
            part = drafter if group.role == "drafter" else builder
            table.add_row(part, *numbers(methods[name], COLUMNS))
        console.print(f"\n{title} {group.shared}:", markup=False, highlight=False)
        console.print(table, markup=False)


def typed(name: str) -> tuple[str, str, str]:
    """Drafter, builder and controller of a method, as typed; by default `chain`, and "" for the controller."""
    drafter, *others = name.split("+")
    builder = others.pop(0) if others and others[0].partition(",")[0] in BUILDERS else "chain"
    return drafter, builder, "".join(others)


def _by(role: str, parsed: Mapping[str, Method]) -> Iterator[Group]:
    found: dict[Any, list[str]] = {}
    for name, method in parsed.items():
        others = method.builder if role == "drafter" else (method.drafter, method.head, method.history)
        found.setdefault((others, method.controller), []).append(name)
    for names in found.values():
        methods = [parsed[name] for name in names]
        differ = {(m.drafter, m.head, m.history) if role == "drafter" else m.builder.name for m in methods}
        if len(differ) > 1:
            drafter, builder, controller = typed(names[0])
            shared = builder if role == "drafter" else drafter
            yield Group(role, f"{shared}+{controller}" if controller else shared, tuple(names))
