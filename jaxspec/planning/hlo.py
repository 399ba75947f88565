"""Reading what XLA compiled: messages between chips, by phase, and what it should never do inside the loop."""

import dataclasses
import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.planning.work import COMMIT, Collective, Phase, merged, phase_of

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_MESSAGE = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) ")
_CALL = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{(.*?)\}|true_computation=(\S+), false_computation=(\S+))")
_NAME = re.compile(r"[\w.\-]+")
_COPY = re.compile(r"^\s*(?:ROOT )?%?\S+ = (\S+) (?:copy|transpose)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_PATH = re.compile(r'op_name="(jit[^"]*)"')
_BITS = re.compile(r"\d+")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{(?P<listed>[\d,]+)\}|\[\d+,(?P<size>\d+)\]<=|mesh\[(?P<axes>.*?)\] ?\{(?P<used>.*?)\})"
)

Array = tuple[str, tuple[int, ...]]  # dtype and shape
Sent = dict[Phase, tuple[Collective, ...]]


@dataclasses.dataclass(frozen=True)
class _Message:
    """A collective as it stands in a program: the arrays of its result, and the chips of a group (None: all)."""

    computation: str
    phase: Phase
    kind: str
    arrays: list[Array]
    chips: int | None

    @property
    def collective(self) -> Collective:
        size = sum(_bytes(*array) for array in self.arrays)
        return Collective(self.kind, size * (self.chips or 1) if self.kind == "reduce-scatter" else size, 1, self.chips)


def collectives(text: str) -> Sent:
    """The messages of each phase of a round. Those before and after the loop are left out.

    Of the branches of a conditional one runs: in each phase the one that sends most counts.
    """
    own: dict[str, list[_Message]] = defaultdict(list)
    for message in _messages(text):
        own[message.computation].append(message)
    calls, entry = _calls(text)

    @functools.cache
    def of(computation: str) -> Sent:
        found: dict[Phase, list[Collective]] = defaultdict(list)
        for message in own[computation]:
            found[message.phase].append(message.collective)
        for branches in calls[computation]:
            choices = [of(branch) for branch in branches]
            for phase in {phase for sent in choices for phase in sent}:
                found[phase] += max((sent.get(phase, ()) for sent in choices), key=_size)
        return {phase: merged(messages) for phase, messages in found.items()}

    return of(entry)


def gathered(text: str, arguments: Iterable[Any]) -> list[str]:
    """Messages of the loop whose result is one of these arguments, whole or as some of its axes are.

    Args:
        arguments: matrices and caches, as `jax.ShapeDtypeStruct`s with shardings.
    """
    whole = set()
    for argument in arguments:
        local = argument.sharding.shard_shape(argument.shape)
        shapes = itertools.product(*zip(local, argument.shape, strict=True))
        whole |= {_plain(shape) for shape in shapes if shape != local} | {_plain(argument.shape)}
    show = lambda dtype, shape: f"{dtype}{list(shape)}"
    return [
        f"{message.kind} of {', '.join(show(*array) for array in message.arrays)}"
        for message in _messages(text)
        if message.kind != "all-reduce" and any(_plain(shape) in whole for _, shape in message.arrays)
    ]


def copied(text: str, arguments: Iterable[Any]) -> list[str]:
    """Instructions of the loop that copy or transpose an array as large as a chip's part of one of these.

    Moves between a TPU's two memories, by which it reads ahead, are none.
    """
    parts = {_plain(argument.sharding.shard_shape(argument.shape)) for argument in arguments}
    copies = ((line, match[1]) for line in _of_loop(text) if (match := _COPY.match(line)))
    shapes = ((line, _ARRAY.match(array)) for line, array in copies)
    return [line.strip()[:160] for line, array in shapes if array and _plain(_shape(array[2])) in parts]


def _messages(text: str) -> Iterator[_Message]:
    """Those of the loop.

    What the partitioner names itself belongs to the phase of what is scheduled before it.
    """
    phase, computation = COMMIT, ""
    for line in _of_loop(text):
        if header := _COMPUTATION.match(line):
            computation = header[1]
        if name := _PATH.search(line):
            phase = phase_of(name[1])
        if match := _MESSAGE.match(line):
            arrays = [(array[1], _shape(array[2])) for array in _ARRAY.finditer(match[1])]
            if match[3] and match[2] != "all-reduce":
                arrays = _results(arrays)
            yield _Message(computation, phase, match[2], arrays, _group(line))


def _results(arrays: list[Array]) -> list[Array]:
    """Of what starts a message, its results: operands, then as many results, then numbers that the device needs."""
    while len(arrays) > 2 and arrays[-1][1] == ():
        arrays = arrays[:-1]
    return arrays[len(arrays) // 2 :]


def _group(line: str) -> int | None:
    """Chips among which a message goes, by the first of its groups, which are alike; None: all of them."""
    match = _GROUPS.search(line)
    if match is None:
        return None
    if match["listed"]:
        return match["listed"].count(",") + 1
    if match["size"]:
        return int(match["size"])
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match["axes"])}
    used = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", match["used"])  # an axis, or so much of one
    return math.prod(int(part) if part else sizes[name] for name, part in used)


def _calls(text: str) -> tuple[dict[str, list[list[str]]], str]:
    """What each computation runs, a list of alternatives each time, and the name of the first computation."""
    calls: dict[str, list[list[str]]] = defaultdict(list)
    computation = entry = ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
            entry = computation if line.startswith("ENTRY") else entry
        elif "-done(" not in line and "-update(" not in line:  # these name again what has been started
            calls[computation] += [[name] for name in _CALL.findall(line)]
            calls[computation] += [_NAME.findall(" ".join(filter(None, found))) for found in _BRANCHES.findall(line)]
    return calls, entry


def _size(messages: Iterable[Collective]) -> int | float:
    return sum(each.bytes * each.count for each in messages)


def _of_loop(text: str) -> Iterator[str]:
    """The lines of a program that is one loop, without what comes before and after."""
    inside = True
    for line in text.splitlines():
        if not line.startswith((" ", "}")):
            inside = not line.startswith("ENTRY")
        if inside:
            yield line


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _plain(shape: Iterable[int]) -> tuple[int, ...]:
    """The same for all layouts of an array."""
    return tuple(sorted(length for length in shape if length != 1))


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    bits = 8 if dtype == "pred" else int(found[0]) if (found := _BITS.search(dtype)) else 0
    return int(np.prod(shape, dtype=np.int64)) * bits // 8


def cut_arguments(placed: Any) -> list[jax.ShapeDtypeStruct]:
    """The matrices and caches among what was placed: what no chip should put together."""
    return [leaf for leaf in jax.tree.leaves(placed) if leaf.ndim >= 2]
