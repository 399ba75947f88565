"""Mutants from a fixed list of operators, drawn with a fixed seed from everything that the operators can change.

The draw depends on a hash of each change and not on its place, so that other edits of a file change few of its mutants.
"""

import ast
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant, StaleError

SEED = "0"
DRAWN = {  # how many mutants each part of the core gets
    "jaxspec/decoding": 14, "jaxspec/rules": 5, "jaxspec/drafters": 12, "jaxspec/builders": 8,
    "jaxspec/controllers": 7, "train/methods": 9, "train/run": 2, "convert": 7, "jaxspec/evaluate": 5,
}  # fmt: skip
METRICS = ("uncertainty.py", "cost_model.py", "divergence.py", "reliability.py", "quality.py")
"""Of `jaxspec/evaluate` these files alone."""

FLIPPED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
OPPOSITES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "any": "all"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}
AXES = {0: 1, 1: 0, 2: 1, 3: 2}


@dataclasses.dataclass(frozen=True)
class Generated(Mutant):
    """A mutant that replaces one expression of the source.

    Attributes:
        old, new: the expression before and after.
        start: where it begins in the file, in characters.
    """

    old: str
    new: str
    start: int

    def applied(self, source: str) -> str:
        if source[self.start : self.start + len(self.old)] != self.old:
            raise StaleError(f"{self.name}: {self.file} has changed since the mutants were drawn")
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


def drawn(tests: Callable[[str], tuple[str, ...]], equivalent: dict[str, str]) -> list[Generated]:
    """All generated mutants.

    Args:
        tests: of a file, those that must notice any change to it.
        equivalent: by name, why no test can notice a mutant.

    Raises:
        StaleError: `equivalent` names a mutant that is not drawn.
    """
    found = []
    for folder, count in DRAWN.items():
        files = sorted((ROOT / folder).glob("*.py"))
        if folder == "jaxspec/evaluate":
            files = [file for file in files if file.name in METRICS]
        sites = [site for file in files for site in _sites(file)]
        found += sorted(sites, key=lambda mutant: _hash(SEED, mutant.name))[:count]
    if unknown := equivalent.keys() - {mutant.name for mutant in found}:
        raise StaleError(f"a mutant that is said to be equivalent is not drawn: {min(unknown)}")
    return [
        dataclasses.replace(mutant, tests=tests(mutant.file), equivalent=equivalent.get(mutant.name, ""))
        for mutant in found
    ]


def _sites(file: Path) -> Iterator[Generated]:
    """Every change that an operator can make to a file."""
    source, name = file.read_text(encoding="utf-8"), str(file.relative_to(ROOT))
    lines = source.splitlines(keepends=True)
    seen: dict[str, int] = {}

    def at(line: int, column: int) -> int:  # ast counts columns in bytes
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for function, operator, node, new in _changes(ast.parse(source), ""):
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        old, text = source[start:end], ast.unparse(new)
        key = f"{name}:{function}:{operator}:{_hash(old, text)[:6]}"
        seen[key] = seen.get(key, 0) + 1
        yield Generated(key if seen[key] == 1 else f"{key}.{seen[key]}", name, (), old=old, new=text, start=start)


def _changes(tree: ast.AST, function: str) -> Iterator[tuple[str, str, ast.expr, ast.expr]]:
    """(function, operator, expression, what takes its place) for everything inside a tree."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
            continue  # messages, checks, annotations and defaults
        name = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            if child.name.startswith(("check", "_check", "_refuse", "__post_init__")):
                continue
            name = f"{function}.{child.name}".removeprefix(".")
        if isinstance(child, ast.expr) and function and function[-1].islower():
            for operator, new in _operators(child):
                yield function, operator, child, new
        yield from _changes(child, name)


def _operators(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The operators that apply to an expression, and what they make of it."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in FLIPPED:
            yield "compare", ast.Compare(left, [FLIPPED[type(op)]()], [right])
        case ast.BinOp(left, op, right) if type(op) in SIGNS and _numbers(left, right):
            yield "sign", ast.BinOp(left, SIGNS[type(op)](), right)
            if isinstance(right, ast.Constant) and isinstance(right.value, int):
                yield "one-off", ast.BinOp(left, op, ast.Constant(right.value + 1))
        case ast.Call(ast.Attribute(value, attr), arguments, keywords) if attr in OPPOSITES:
            yield "opposite", ast.Call(ast.Attribute(value, OPPOSITES[attr]), arguments, keywords)
        case ast.Call(ast.Name(name), arguments, keywords) if name in OPPOSITES:
            yield "opposite", ast.Call(ast.Name(OPPOSITES[name]), arguments, keywords)
        case ast.Call(ast.Attribute(_, "where"), [_, yes, no], []):
            yield "where-yes", yes
            yield "where-no", no
    if isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            axis = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg == "axis" and isinstance(axis, int) and axis in AXES:
                other = ast.keyword("axis", ast.Constant(AXES[axis]))
                yield "axis", ast.Call(node.func, node.args, [*node.keywords[:i], other, *node.keywords[i + 1 :]])


def _numbers(*operands: ast.expr) -> bool:
    """Whether none of the operands is clearly a text, a tuple or a list."""
    parts = [part for each in operands for part in ([each.left, each.right] if isinstance(each, ast.BinOp) else [each])]
    texts = [part for part in parts if isinstance(part, ast.Constant) and not isinstance(part.value, int | float)]
    return not texts and not any(isinstance(part, ast.JoinedStr | ast.Tuple | ast.List) for part in parts)


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
