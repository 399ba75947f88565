"""Messages between chips in a compiled program."""

import math
import re

from jaxspec.planning.hlo import Buffer, Instruction
from jaxspec.planning.work import Collective

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_GROUPS = re.compile(
    r"replica_groups=(?:\{\{(?P<listed>[\d,]+)\}|\[\d+,(?P<size>\d+)\]<=|mesh\[(?P<axes>.*?)\] ?\{(?P<used>.*?)\})"
)


def message_of(instruction: Instruction) -> Collective | None:
    """The message that an instruction sends or starts to send; None if it sends none."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS:
        return None
    arrays, chips = received(instruction), _group(instruction.line)
    size = sum(each.bytes for each in arrays)
    return Collective(kind, size * (chips or 1) if kind == "reduce-scatter" else size, 1, chips)


def received(message: Instruction) -> tuple[Buffer, ...]:
    """The result arrays of a message.

    The tuple of a `-start` instruction holds its operands, then as many results, then scalars for the device. An
    all-reduce has its results only.
    """
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
