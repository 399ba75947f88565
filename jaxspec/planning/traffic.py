"""Bytes that an instruction of a compiled program moves to and from a chip's main memory, and its message.

Operands are read and results are written. Buffers in fast memory do not count; of slices only the slice does, and of
in-place updates only the update."""

import math
import re

from jaxspec.planning.chips import Collective
from jaxspec.planning.hlo import Buffer, CompiledProgram, Computation, Instruction

TAKES = ("dynamic-slice", "slice", "gather")
SAME = ("bitcast", "reshape", "copy-done", "slice-done", "get-tuple-element")
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Index of the operand with the new values, by operation."""
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "domain", "opt-barrier", "add-dependency",
}  # fmt: skip


def moved(program: CompiledProgram, computation: Computation, instruction: Instruction) -> int:
    """Bytes that an instruction reads from main memory and writes to it."""
    if instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update")):
        return 0
    if instruction.opcode.endswith("-start"):
        return _copied(instruction)
    if instruction.opcode in UPDATES:
        new = computation.by_name.get(instruction.operands[UPDATES[instruction.opcode]])
        return 2 * new.bytes if new else 0
    if instruction.opcode in TAKES:
        return 2 * sum(each.slow_bytes for each in instruction.results) or instruction.bytes
    read = sum(_read(program, computation, instruction, at) for at in range(len(instruction.operands)))
    return read + sum(written(program, instruction))


def _copied(instruction: Instruction) -> int:
    """Bytes of a copy or slice that starts; they count twice if source and destination are both in main memory."""
    arrays = [each for each in instruction.results if each.shape] or instruction.results[:2]
    first, last = arrays[0], arrays[-1]
    brought = first if instruction.opcode == "copy-start" else last  # it lists its result first, others the operand
    return brought.bytes * max(1, sum(not end.fast for end in (first, last)))


def _read(program: CompiledProgram, computation: Computation, instruction: Instruction, at: int) -> int:
    """Bytes that an instruction reads of one operand."""
    source, inner = computation.by_name.get(instruction.operands[at]), called(program, instruction)
    if source is None or source.opcode == "tuple":
        return 0
    whole = sum(each.slow_bytes for each in source.results)
    if not whole or inner is None or at not in inner.parameters:
        return whole
    return min(whole, _used(program, inner, inner.parameters[at], whole))


def _used(program: CompiledProgram, inner: Computation, value: Instruction, whole: int) -> int:
    """Bytes that a fused computation uses of a value with `whole` bytes."""
    if value is inner.root:
        return whole
    total = 0
    for user in (each for each in inner.instructions if value.name in each.operands):
        first = user.operands[0] == value.name
        if user.opcode in TAKES and first:
            total += user.bytes
        elif user.opcode in UPDATES and first:
            continue
        elif user.opcode in SAME:
            total += _used(program, inner, user, whole)
        elif user.opcode == "fusion" and (nested := called(program, user)):
            inputs = [nested.parameters[i] for i, name in enumerate(user.operands) if name == value.name]
            total += sum(_used(program, nested, each, whole) for each in inputs)
        else:
            return whole
    return total


def written(program: CompiledProgram, instruction: Instruction) -> list[int]:
    """Bytes written to main memory, for each result of an instruction."""
    whole = [each.slow_bytes for each in instruction.results]
    if (inner := called(program, instruction)) is None:
        return whole
    root = inner.root
    ends = [inner.by_name.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
    if len(ends) != len(whole):
        return whole
    return [min(size, _new(program, inner, end)) if end else size for end, size in zip(ends, whole, strict=True)]


def _new(program: CompiledProgram, inner: Computation, end: Instruction) -> int:
    """Bytes of a fused computation's result that are newly written."""
    while end.opcode in SAME and end.operands and end.operands[0] in inner.by_name:
        end = inner.by_name[end.operands[0]]
    if end.opcode in UPDATES and len(end.operands) > UPDATES[end.opcode]:
        new = inner.by_name.get(end.operands[UPDATES[end.opcode]])
        return new.bytes if new else end.bytes
    nested = called(program, end) if end.opcode == "fusion" else None
    return _new(program, nested, nested.root) if nested else end.bytes


def called(program: CompiledProgram, instruction: Instruction) -> Computation | None:
    """The computation that a fusion, or another instruction, calls; None if it calls none."""
    return program.computations.get(instruction.runs.get("calls", ""))


MESSAGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_GROUPS = re.compile(
    r"replica_groups=(?:\{\{(?P<listed>[\d,]+)\}|\[\d+,(?P<size>\d+)\]<=|mesh\[(?P<axes>.*?)\] ?\{(?P<used>.*?)\})"
)


def message_of(instruction: Instruction) -> Collective | None:
    """The message that an instruction sends or starts to send; None if it sends none."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in MESSAGES:
        return None
    size, chips = sum(each.bytes for each in received(instruction)), _group(instruction.line)
    return Collective(kind, size * (chips or 1) if kind == "reduce-scatter" else size, 1, chips)


def received(message: Instruction) -> tuple[Buffer, ...]:
    """The result arrays of a message. A `-start` has its operands before and scalars after them; not an all-reduce."""
    arrays = message.results
    if message.opcode.startswith("all-reduce") or not message.opcode.endswith("-start"):
        return arrays
    while len(arrays) > 2 and arrays[-1].shape == ():
        arrays = arrays[:-1]
    return arrays[len(arrays) // 2 :]


def _group(line: str) -> int | None:
    """Number of chips in a message's replica groups, which all have the same size; None: all chips."""
    match = _GROUPS.search(line)
    if match is None:
        return None
    if match["listed"]:
        return match["listed"].count(",") + 1
    if match["size"]:
        return int(match["size"])
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match["axes"])}
    used = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", match["used"])  # an axis, or a part of one
    return math.prod(int(part) if part else sizes[name] for name, part in used)
