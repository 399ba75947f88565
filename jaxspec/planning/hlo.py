"""Reads a program that XLA compiled: its instructions, their buffers, and called computations."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?)\s([\w\-]+)\(([^)]*)")  # name, type, opcode, operands
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_CALL = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{(.*?)\}|true_computation=(\S+), false_computation=([^\s,]+))")

MAIN = ("0", "5")  # memory spaces in a layout that are not fast memory: the chip's main memory, and the host's


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array of a program; `fast` if the compiler placed it in the chip's fast memory."""

    dtype: str
    shape: tuple[int, ...]
    fast: bool = False

    @property
    def bytes(self) -> int:
        """Bytes without the layout's padding."""
        bits = 8 if self.dtype == "pred" else int(_first(r"(\d+)", self.dtype) or 0)
        return math.prod(self.shape) * bits // 8

    @property
    def slow_bytes(self) -> int:
        """Bytes in main memory."""
        return 0 if self.fast else self.bytes

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, a line of the program's text."""

    name: str
    opcode: str
    results: tuple[Buffer, ...]  # several for a tuple
    operands: tuple[str, ...]  # names of the instructions whose results it reads
    runs: Mapping[str, str]  # names of the computations that it calls, by role, such as `body`
    branches: tuple[str, ...]  # names of a conditional's computations
    path: str  # the scopes in which it was traced; empty if the compiler added it
    cycles: int | None  # the compiler's estimate for a TPU; None if it gives none
    target: str  # of a custom call; otherwise empty
    flops: int  # of a kernel, by its own cost estimate; 0 for any other instruction
    line: str

    @property
    def bytes(self) -> int:
        """Bytes of its results."""
        return sum(each.bytes for each in self.results)


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation: its instructions in scheduled order."""

    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @functools.cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        """The parameter instructions, by parameter number."""
        found = (each for each in self.instructions if each.opcode == "parameter")
        return {int(_first(r"parameter\((\d+)", each.line)): each for each in found}

    @functools.cached_property
    def root(self) -> Instruction:
        return next((each for each in self.instructions if each.line.startswith("ROOT ")), self.instructions[-1])


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, read from `compiled.as_text()`: all computations by name, and the name of the entry."""

    computations: Mapping[str, Computation]
    entry: str

    @classmethod
    def parse(cls, text: str) -> "CompiledProgram":
        """Reads the text of an HLO module."""
        found: dict[str, list[Instruction]] = {}
        entry = name = ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                name = header["name"]
                found[name] = []
                entry = name if header["entry"] else entry
            elif name and (instruction := _instruction(line)):
                found[name].append(instruction)
        return cls({key: Computation(tuple(lines)) for key, lines in found.items() if lines}, entry)

    @property
    def main_loop(self) -> Instruction | None:
        """The last `while` of the entry: earlier ones prepare its arguments. None if the program has no loop."""
        loops = [each for each in self.computations[self.entry].instructions if each.opcode == "while"]
        return loops[-1] if loops else None

    @property
    def loop(self) -> Computation:
        """The body of the program's loop; the whole program if it has no loop."""
        return self.computations[self.main_loop.runs["body"] if self.main_loop else self.entry]

    @property
    def inside(self) -> Iterator[Instruction]:
        """All instructions inside the loop, those of fusions included."""
        alone = self.main_loop is None
        for name, computation in self.computations.items():
            if alone or name != self.entry:
                yield from computation.instructions

    def trips(self, loop: Instruction) -> int | None:
        """Iterations of a `while` whose condition counts up to a constant; None for any other `while`."""
        condition = self.computations[loop.runs["condition"]]
        root = condition.root
        if root.opcode != "compare" or "direction=LT" not in root.line:
            return None
        bounds = (condition.by_name.get(name) for name in root.operands)
        known = [bound for each in bounds if each and (bound := _first(r" constant\((\d+)\)", each.line))]
        return int(known[0]) if known else None


def _instruction(line: str) -> Instruction | None:
    if (found := _INSTRUCTION.match(line)) is None:
        return None
    name, type_, opcode, operands = found.groups()
    cycles = _first(r'"estimated_cycles":"(\d+)"', line)
    return Instruction(
        name=name,
        opcode=opcode,
        results=tuple(map(_buffer, _ARRAY.finditer(type_))),
        operands=tuple(_NAME.findall(operands)),
        runs=dict(_CALL.findall(line)),
        branches=tuple(name for found in _BRANCHES.findall(line) for part in found for name in _NAME.findall(part)),
        path=_first(r'op_name="(jit[^"]*)"', line),
        cycles=int(cycles) if cycles else None,
        target=_first(r'custom_call_target="([^"]*)"', line),
        flops=int(_first(r'"cost_estimate":\{"flops":"(\d+)"', line) or 0),
        line=line.strip(),
    )


def _buffer(found: re.Match[str]) -> Buffer:
    memory = _first(r"S\((\d+)\)", found[3] or "")
    return Buffer(found[1], tuple(map(int, filter(None, found[2].split(",")))), memory not in ("", *MAIN))


def _first(pattern: str, text: str) -> str:
    """The first group of the pattern's first match; empty if there is none."""
    found = re.search(pattern, text)
    return found[1] if found else ""
