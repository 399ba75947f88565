"""Imports go downwards by layers only, without cycles; imports inside functions count too."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("host",),
    ("model",),
    ("checkpoint", "decoding"),
    ("rules", "drafters", "builders", "controllers"),
    ("methods",),
    ("costs",),
    ("engine",),
    ("options",),
    ("planning",),
    ("evaluate", "convert"),
    ("report", "train", "verify"),
    ("commands",),
)
"""The packages, from the ground up. A package imports none of its own floor or above; convert and train lie beside
jaxspec and are linked into it."""
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}


def modules() -> dict[str, Path]:
    """Every file of the library by its module's name. `jaxspec` itself is left out: it is the public face."""
    homes = [ROOT / "jaxspec", ROOT / "convert", ROOT / "train"]
    files = {path for home in homes for path in home.rglob("*.py")}  # rglob follows no links
    found = {}
    for path in files:
        parts = path.relative_to(ROOT).with_suffix("").parts
        whole = parts if parts[0] == "jaxspec" else ("jaxspec", *parts)
        found[".".join(whole[:-1] if whole[-1] == "__init__" else whole)] = path
    return {name: path for name, path in sorted(found.items()) if name != "jaxspec"}


MODULES = modules()


def imports(name: str, source: str) -> Iterator[str]:
    """Modules of jaxspec that a module imports anywhere in its source: at the top, in functions, under conditions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "jaxspec")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by a relative name"
            assert node.module is not None
            if node.module.split(".")[0] == "jaxspec":
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (full if full in MODULES else node.module for full in inner)


def package(module: str) -> str | None:
    """`decoding` of `jaxspec.decoding.tree`; None for jaxspec itself."""
    return module.split(".")[1] if "." in module else None


def violation(importer: str, imported: str) -> str | None:
    """What is wrong with an import, None where it goes down or stays in its package."""
    ours, theirs = package(importer), package(imported)
    if theirs is None:  # the version
        return None if ours == "commands" else f"{importer} imports all of jaxspec by its public face"
    if theirs not in FLOOR:
        return f"{importer} imports {imported}, whose package has no floor"
    assert ours is not None
    if ours == theirs or FLOOR[theirs] < FLOOR[ours]:
        return None
    return f"{importer} imports {imported}, which is not below it"


IMPORTS = {name: set(imports(name, path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}


def test_every_package_has_a_floor():
    assert {package(name) for name in MODULES} == FLOOR.keys()
    assert len(MODULES) > 150, "files were overlooked"


def test_imports_go_down():
    wrong = [violation(name, other) for name, others in IMPORTS.items() for other in sorted(others)]
    assert [what for what in wrong if what] == []


def test_no_circles():
    try:
        tuple(graphlib.TopologicalSorter({name: others - {name} for name, others in IMPORTS.items()}).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_are_found_wherever_they_stand():
    source = """
from typing import TYPE_CHECKING
import jaxspec.model.llama
if TYPE_CHECKING:
    from jaxspec.engine.engine import Engine
def late():
    from jaxspec.decoding import tree
"""
    found = set(imports("jaxspec.model.config", source))
    assert found == {"jaxspec.model.llama", "jaxspec.engine.engine", "jaxspec.decoding.tree"}
    wrong = {other for other in found if violation("jaxspec.model.config", other)}
    assert wrong == {"jaxspec.engine.engine", "jaxspec.decoding.tree"}
    assert violation("jaxspec.drafters.eagle", "jaxspec.rules.greedy"), "a neighbour on the same floor"
    assert violation("jaxspec.drafters.eagle", "jaxspec"), "which has everything"
