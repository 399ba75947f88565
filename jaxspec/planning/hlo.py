"""Reading what XLA compiled: messages between chips, by phase, and what it should never do inside the loop."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.planning.phases import COMMIT, Phase, phase_of
from jaxspec.planning.work import Collective, merged

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_MESSAGE = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
_COPY = re.compile(r"^\s*(?:ROOT )?%?\S+ = (\S+) (?:copy|transpose)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_PATH = re.compile(r'op_name="(jit[^"]*)"')
_BITS = re.compile(r"\d+")


def collectives(text: str) -> dict[Phase, tuple[Collective, ...]]:
    """The messages of each phase of a round. Those before and after the loop are left out."""
    found: dict[Phase, list[Collective]] = defaultdict(list)
    for kind, arrays, started, phase in _messages(text):
        sizes = [_bytes(*array) for array in arrays]
        found[phase].append(Collective(kind, max(sizes) if started else sum(sizes)))
    return {phase: merged(messages) for phase, messages in found.items()}


def gathered(text: str, arguments: Iterable[Any]) -> list[str]:
    """Messages of the loop whose result is one of these arguments, whole or as some of its axes are.

    Args:
        arguments: matrices and caches, as `jax.ShapeDtypeStruct`s with shardings.
    """
    whole = set()
    for argument in arguments:
        local = argument.sharding.shard_shape(argument.shape)
        every = itertools.product(*zip(local, argument.shape, strict=True))
        whole |= {_plain(shape) for shape in every if shape != local} | {_plain(argument.shape)}
    said = lambda kind, arrays: f"{kind} of {', '.join(f'{dtype}{list(shape)}' for dtype, shape in arrays)}"
    return [
        said(kind, arrays)
        for kind, arrays, _, _ in _messages(text)
        if kind != "all-reduce" and any(_plain(shape) in whole for _, shape in arrays)
    ]


def copied(text: str, arguments: Iterable[Any]) -> list[str]:
    """Instructions of the loop that copy or transpose an array as large as a chip's part of one of these.

    Moves between a TPU's two memories, by which it reads ahead, are none.
    """
    parts = {_plain(argument.sharding.shard_shape(argument.shape)) for argument in arguments}
    copies = ((line, match[1]) for line in _of_loop(text) if (match := _COPY.match(line)))
    shapes = ((line, _ARRAY.match(array)) for line, array in copies)
    return [line.strip()[:160] for line, array in shapes if array and _plain(_shape(array[2])) in parts]


def _messages(text: str) -> Iterator[tuple[str, list[tuple[str, tuple[int, ...]]], bool, Phase]]:
    """Kind, arrays of the result, whether it only starts here, and the phase.

    What the partitioner names itself belongs to the phase of what is scheduled before it.
    """
    phase = COMMIT
    for line in _of_loop(text):
        if name := _PATH.search(line):
            phase = phase_of(name[1])
        if match := _MESSAGE.match(line):
            arrays = [(array[1], _shape(array[2])) for array in _ARRAY.finditer(match[1])]
            yield match[2], arrays, bool(match[3]), phase


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
