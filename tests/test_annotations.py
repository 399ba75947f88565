"""Every parameter has a type, which jaxtyping and beartype check; every strategy is final and named."""

import ast
import importlib
import inspect
from collections.abc import Iterator

import pytest

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Rule
from tests.test_imports import MODULES

TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
BASES = (Drafter, TreeBuilder, Controller, Rule)


def functions(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, bool]]:
    """Functions and methods, and whether each is a method; those inside of functions are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, isinstance(tree, ast.ClassDef)
        elif not isinstance(node, ast.AsyncFunctionDef | ast.Lambda):
            yield from functions(node)


def unannotated(function: ast.FunctionDef, is_method: bool) -> list[str]:
    """Parameters without a type, and `return`; a method's first parameter needs none."""
    given = function.args
    several = [*given.posonlyargs, *given.args]
    static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
    several = several[1:] if is_method and not static else several
    several += [*given.kwonlyargs, *(one for one in (given.vararg, given.kwarg) if one is not None)]
    missing = [one.arg for one in several if one.annotation is None]
    return missing + ["return"] * (function.returns is None and function.name != "__init__")


def test_every_function_is_annotated():
    found = {
        f"{name}:{function.lineno} {function.name}": missing
        for name, tree in TREES.items()
        for function, is_method in functions(tree)
        if (missing := unannotated(function, is_method))
    }
    assert found == {}


def test_a_missing_type_is_found():
    source = """
class A:
    def __init__(self, a): ...
    def of(self, a: int, *rest, b=1) -> int: ...
    @staticmethod
    def at(a) -> int: ...
def plain(a: int): ...
def outer() -> None:
    def inner(a): ...
"""
    found = [unannotated(*one) for one in functions(ast.parse(source))]
    assert found == [["a"], ["b", "rest"], ["a"], ["return"], []]


def test_no_attribute_is_looked_up_that_may_be_missing():
    """A base class declares whatever its subclasses have."""
    asking = lambda call: call.func.id == "hasattr" or (call.func.id == "getattr" and len(call.args) > 2)
    found = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and asking(node)
    ]
    assert found == []


def strategies() -> list[type]:
    """Every concrete class of a strategy that the library defines; of its modules those that have one are imported."""
    direct = {base.__name__ for base in BASES}
    for name, tree in TREES.items():
        bases = [base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
        if any(isinstance(base, ast.Name) and base.id in direct for base in bases):
            importlib.import_module(name)

    def below(kind: type) -> Iterator[type]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    found = {one for base in BASES for one in below(base) if one.__module__ in MODULES}
    return sorted((one for one in found if not inspect.isabstract(one)), key=lambda one: one.__qualname__)


def test_every_strategy_is_final_and_named():
    found = strategies()
    assert {"Eagle", "Plain", "Chain", "BetaTS", "Greedy", "Recorder"} <= {one.__name__ for one in found}
    assert [one.__name__ for one in found if not one.__dict__.get("__final__")] == []
    named = [one for one in found if not issubclass(one, Rule)]
    assert [one.__name__ for one in named if not isinstance(one.__dict__.get("name"), str)] == []


@pytest.mark.parametrize("base", BASES)
def test_a_base_cannot_be_made(base: type):
    with pytest.raises(TypeError, match="abstract"):
        base()
