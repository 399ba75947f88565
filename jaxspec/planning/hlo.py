"""Reads a program that XLA compiled: its instructions, the buffers that they read and write, and called
computations."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

import numpy as np

_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_MODULE = re.compile(r"^HloModule ([\w.\-]+)")
_START = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%?([\w.\-]*[A-Za-z_][\w.\-]*)")
_CALL = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{(.*?)\}|true_computation=(\S+), false_computation=([^\s,]+))")
_PATH = re.compile(r'op_name="(jit[^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_MEMORY = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"\d+")

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
        bits = 8 if self.dtype == "pred" else int(found[0]) if (found := _BITS.search(self.dtype)) else 0
        return int(np.prod(self.shape, dtype=np.int64)) * bits // 8

    @property
    def slow_bytes(self) -> int:
        """Bytes in main memory."""
        return 0 if self.fast else self.bytes

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction, a line of the program's text.

    Attributes:
        results: the arrays of its result; several for a tuple.
        operands: names of the instructions whose results it reads.
        runs: names of the computations that it calls, by role, such as `body`.
        branches: names of a conditional's computations.
        path: the scopes in which it was traced; empty if the compiler added it.
        cycles: the compiler's estimate for a TPU; None if it gives none.
        line: its line in the text.
    """

    name: str
    opcode: str
    results: tuple[Buffer, ...]
    operands: tuple[str, ...]
    runs: Mapping[str, str]
    branches: tuple[str, ...]
    path: str
    cycles: int | None
    is_root: bool
    line: str

    @property
    def target(self) -> str:
        """The target of a custom call; otherwise empty."""
        found = _TARGET.search(self.line)
        return found[1] if found else ""

    @property
    def flops(self) -> int:
        """Operations of a kernel, from the kernel's own cost estimate; 0 for any other instruction."""
        found = _FLOPS.search(self.line)
        return int(found[1]) if found else 0

    @property
    def bytes(self) -> int:
        """Bytes of its results."""
        return sum(each.bytes for each in self.results)


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation: its instructions in scheduled order."""

    name: str
    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @functools.cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        """The parameter instructions, by parameter number."""
        found = (each for each in self.instructions if each.opcode == "parameter")
        return {int(each.line.split("parameter(")[1].split(")")[0]): each for each in found}

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """The instructions that read each instruction's result, by its name."""
        found: dict[str, list[Instruction]] = {}
        for each in self.instructions:
            for name in dict.fromkeys(each.operands):
                found.setdefault(name, []).append(each)
        return {name: tuple(users) for name, users in found.items()}

    @property
    def root(self) -> Instruction:
        return next((each for each in self.instructions if each.is_root), self.instructions[-1])


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, read from `compiled.as_text()`.

    Attributes:
        computations: all computations, by name.
        entry: the name of the entry computation.
        module: the name of the HLO module.
    """

    computations: Mapping[str, Computation]
    entry: str
    module: str = ""

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
        module = _MODULE.match(text)
        computations = {key: Computation(key, tuple(lines)) for key, lines in found.items() if lines}
        return cls(computations, entry, module[1] if module else "")

    @property
    def loop(self) -> Computation:
        """The body of the program's loop; the whole program if it has no loop.

        If there are several loops it is the last: earlier ones prepare its arguments.
        """
        loops = [each for each in self.computations[self.entry].instructions if each.opcode == "while"]
        return self.computations[loops[-1].runs["body"]] if loops else self.computations[self.entry]

    @property
    def inside(self) -> Iterator[Instruction]:
        """All instructions inside the loop, those of fusions included."""
        alone = self.loop.name == self.entry
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
        known = [match for each in bounds if each and (match := re.search(r" constant\((\d+)\)", each.line))]
        return int(known[0][1]) if known else None


def _instruction(line: str) -> Instruction | None:
    start = _START.match(line)
    if start is None:
        return None
    end = _end_of_type(line, start.end())
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    close = _closing(line, opcode.end() - 1)
    inputs, rest = line[opcode.end() : close], line[close:]
    branches = tuple(name for found in _BRANCHES.findall(rest) for part in found for name in _NAME.findall(part))
    path, cycles = _PATH.search(rest), _CYCLES.search(rest)
    return Instruction(
        name=start["name"],
        opcode=opcode[1],
        results=tuple(_buffer(found) for found in _ARRAY.finditer(line, start.end(), end)),
        operands=() if opcode[1] in ("parameter", "constant") else tuple(_operands(inputs)),
        runs=dict(_CALL.findall(rest)),
        branches=branches,
        path=path[1] if path else "",
        cycles=int(cycles[1]) if cycles else None,
        is_root=bool(start["root"]),
        line=line.strip(),
    )


def _operands(text: str) -> Iterator[str]:
    """Names of the operands. Older versions of the text write a type before each name."""
    plain = re.sub(r"/\*.*?\*/|\{[^{}]*\}|\[[^\]]*\]", "", text)
    for part in plain.replace("(", "").replace(")", "").split(","):
        if found := _NAME.findall(part):
            yield found[-1]


def _buffer(found: re.Match[str]) -> Buffer:
    shape = tuple(map(int, found[2].split(","))) if found[2] else ()
    memory = _MEMORY.search(found[3] or "")
    return Buffer(found[1], shape, memory is not None and memory[1] not in MAIN)


def _end_of_type(line: str, start: int) -> int:
    """End of the type of a result. A tuple is in brackets; an array's type contains no space."""
    return _closing(line, start) + 1 if line.startswith("(", start) else line.find(" ", start)


def _closing(line: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return at
    return len(line)
