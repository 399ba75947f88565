"""Operations that a decoding loop should not have, and whether a compiled loop has them."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from jaxspec.model.sharding import model_size
from jaxspec.planning import traffic
from jaxspec.planning.estimate import Operation
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.program import Compiled, PlacedProgram
from jaxspec.planning.traffic import message_of, received

SMALL = 2**20  # a copy of fewer bytes is no fault
SCORES = 2**26  # attention scores in main memory are a fault from this many bytes on
SERIAL = 8  # a loop added by the compiler is a fault from this many iterations on


def find_faults(placed: PlacedProgram, compiled: Compiled) -> list[str]:
    """All faults of a compiled loop, each as a clause."""
    program, found, models = compiled.program, compiled.operations, placed.models
    weights, caches = ([leaf for leaf in jax.tree.leaves(of) if leaf.ndim >= 2] for of in (models, placed.state.cache))
    faults = [
        *gathered(program, [*weights, *caches], models.target.config.vocab_size),
        *copied(program, found, [*weights, *caches]),
        *serial_loops(found),
        *sorted_vocabularies(found, models.target.config.vocab_size // model_size(placed.mesh)),
        *held_scores(found, placed.state.tokens.shape[1], caches),
    ]
    return list(dict.fromkeys(faults))


def gathered(program: CompiledProgram, arguments: Iterable[Any], vocabulary: int) -> Iterator[str]:
    """Messages that gather one of these arguments, along some or all of its sharded axes, or logits."""
    whole = set()
    for argument in arguments:
        local = argument.sharding.shard_shape(argument.shape)
        shapes = itertools.product(*zip(local, argument.shape, strict=True))
        whole |= {_plain(shape) for shape in shapes if shape != local} | {_plain(argument.shape)}
    for each in program.inside:
        message = message_of(each)
        if message is None or message.kind == "all-reduce":
            continue
        arrays = received(each)
        if any(_plain(array.shape) in whole or vocabulary in array.shape for array in arrays):
            yield f"{message.kind} of {', '.join(map(str, arrays))}"


def copied(program: CompiledProgram, found: Iterable[Operation], arguments: Iterable[Any]) -> Iterator[str]:
    """Operations that write an array with the shape of a chip's part of an argument to main memory."""
    parts = {_plain(argument.sharding.shard_shape(argument.shape)) for argument in arguments}
    for each in found:
        instruction = each.instruction
        if each.message or instruction.opcode.endswith("-start") or instruction.opcode in traffic.UPDATES:
            continue
        for buffer, new in zip(instruction.results, traffic.written(program, instruction), strict=True):
            if new >= max(SMALL, buffer.bytes) and _plain(buffer.shape) in parts:
                text = f"{instruction.opcode} writes {buffer}, as large as a weight or cache"
                yield f"{text} ({_short(instruction.path)})"


def serial_loops(found: Iterable[Operation]) -> Iterator[str]:
    """Loops that the compiler made from one operation, such as a scatter that writes one row at a time."""
    for times, path in {each.loop.name: (each.times, each.loop.path) for each in found if each.loop}.values():
        if times >= SERIAL and not path.endswith(("/while", "/scan")):
            yield f"a sequential loop of {times} iterations ({_short(path)})"


def sorted_vocabularies(found: Iterable[Operation], least: int) -> Iterator[str]:
    """Sorts of at least `least` values, a chip's part of the vocabulary."""
    for each in found:
        lengths = each.instruction.results[0].shape if each.kind == "sort" else ()
        if max(lengths, default=0) >= least:
            yield f"sort of {each.instruction.results[0]} ({_short(each.instruction.path)})"


def held_scores(found: Iterable[Operation], rows: int, caches: Iterable[Any]) -> Iterator[str]:
    """Large arrays in main memory with an axis as long as the cache, other than the caches: attention scores."""
    parts = {_plain(argument.sharding.shard_shape(argument.shape)) for argument in caches}
    for each in found:
        for buffer in each.instruction.results:
            if buffer.slow_bytes >= SCORES and rows in buffer.shape and _plain(buffer.shape) not in parts:
                yield f"{buffer} of scores in main memory ({_short(each.instruction.path)})"


def _plain(shape: Iterable[int]) -> tuple[int, ...]:
    """A key that is the same for all transpositions of an array."""
    return tuple(sorted(length for length in shape if length != 1))


def _short(path: str) -> str:
    return "/".join(path.split("/")[-4:]) or "added by the compiler"
