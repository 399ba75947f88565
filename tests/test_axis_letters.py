"""Shapes use only the axis letters that CONTRIBUTING lists."""

import ast
import re
from pathlib import Path

from tests.test_imports import MODULES

ROOT = Path(__file__).parent.parent
ARRAYS = {"Array", "Bool", "Float", "Float32", "Int", "Int8", "Integer", "Key", "Num", "Shaped", "UInt32", "UInt8"}


def glossary() -> set[str]:
    """The letters that CONTRIBUTING explains."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    passage = re.search(r"An axis has one letter(.*?)What is rarer", text, re.DOTALL)
    assert passage is not None
    return set(re.findall(r"\b[A-Za-z]\b", passage[1])) - {"a"}


def letters(tree: ast.AST) -> set[str]:
    """The letters in shapes: each in `Float[Array, "B #N 2*V"]`, of words none."""
    shapes = [
        node.slice.elts[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ARRAYS
        and isinstance(node.slice, ast.Tuple)
        and isinstance(node.slice.elts[1], ast.Constant)
    ]
    return {letter for shape in shapes for letter in re.findall(r"\b[A-Za-z]\b", str(shape))}


def test_every_axis_letter_is_in_the_glossary():
    allowed = glossary()
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    found = {name: strange for name, tree in trees.items() if (strange := letters(tree) - allowed)}
    assert found == {}


def test_letters_are_read():
    assert glossary() >= {"B", "N", "V", "h"}
    source = 'a: Float[Array, "B #N 2*V"] | None; b: Int[Array, " W"]; c: Key[Array, "B levels"]'
    assert letters(ast.parse(source)) == {"B", "N", "V", "W"}
