"""Counts the work of a traced program on each chip from its shapes: products, memory, and the messages of sharding.

Memory is a lower bound: every weight and cache row that a part of a round uses is read once, and activations stay on
the chip, which has room for a few hundred of their rows."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from jaxspec.decoding.loop import DRAFTING, LEVEL, VERIFICATION
from jaxspec.decoding.prefill import FIRST_TOKEN
from jaxspec.model.quantization import leaf_bytes
from jaxspec.model.sharding import AnyMesh
from jaxspec.planning.chips import Collective, Work, merged

COMMIT = "commit"
Phase = str  # DRAFTING, LEVEL, COMMIT, or VERIFICATION and the number of nodes; in prefill FIRST_TOKEN or COMMIT

_SCOPE = re.compile(rf"(?:^|/)({DRAFTING}|{LEVEL}|{FIRST_TOKEN}|{VERIFICATION}\d+)(?=/|$)")


def phase_of(path: str) -> Phase:
    """The innermost scope of a path such as `jit(decode)/while/body/draft/while/body/level/dot_general`."""
    found = _SCOPE.findall(path)
    return found[-1] if found else COMMIT


@dataclasses.dataclass(frozen=True)
class Parts:
    """The work of each phase of a round: drafting, further levels, verification by size, and the rest."""

    works: Mapping[Phase, Work]

    @property
    def draft(self) -> Work:
        """Drafting without the levels after the first: the drafter's pass over new tokens, and the first level."""
        return self.works[DRAFTING]

    @property
    def level(self) -> Work:
        """One further level."""
        return self.works[LEVEL]

    @property
    def verify(self) -> Mapping[int, Work]:
        """Verification, by the number of nodes, ascending."""
        return {_size(phase): work for phase, work in self.works.items() if phase.startswith(VERIFICATION)}

    def drafting(self, levels: int | float) -> dict[Phase, int | float]:
        """How often each phase runs to draft this many levels."""
        return {DRAFTING: 1, LEVEL: max(levels - 1, 0)} if levels else {}

    def verification(self, nodes: int | float) -> dict[Phase, int | float]:
        """How often each phase runs to verify and commit this many nodes, at the smallest size that holds them."""
        size = min((size for size in self.verify if size >= nodes), default=max(self.verify))
        return {f"{VERIFICATION}{size}": 1, COMMIT: 1}

    def work(self, runs: Mapping[Phase, int | float]) -> Work:
        """The work of phases, each repeated `runs[phase]` times."""
        return sum((self.works[phase].times(number) for phase, number in runs.items()), Work())

    def with_messages(self, messages: Mapping[Phase, tuple[Collective, ...]]) -> "Parts":
        """The same work with the compiled program's messages."""
        changed = lambda phase: dataclasses.replace(self.works[phase], collectives=messages.get(phase, ()))
        return Parts({phase: changed(phase) for phase in self.works})


def _size(phase: Phase) -> int:
    return int(phase.removeprefix(VERIFICATION))


SAME_VALUES = {
    "convert_element_type", "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy",
    "sharding_constraint", "optimization_barrier",
}  # fmt: skip
PARTIAL = {"gather", "dynamic_slice", "slice"}
WRITES = {"dynamic_update_slice": 1, "scatter": 2}
"""Index of the operand with the new values, by operation."""

CACHE = 4  # number of axes of keys and values; weights have fewer
Arguments = frozenset[int]  # the program's arguments that a value is computed from, if from nothing else
NONE: Arguments = frozenset()


def count(traced: Any, arguments: Any, mesh: AnyMesh) -> Parts:
    """The work of the parts of a round, from a traced `loop.decode` and its arguments, sharded on the mesh."""
    leaves, jaxpr = jax.tree.leaves(arguments), traced.jaxpr.jaxpr
    assert len(leaves) == len(jaxpr.invars), "the program must have as many inputs as there are arguments"
    counter = _Counter(leaves, mesh)
    counter.walk(jaxpr, [frozenset([i]) for i in range(len(leaves))], "", 1)
    found = {phase: counter.work(phase) for phase in counter.phases}
    sizes = sorted((phase for phase in found if phase.startswith(VERIFICATION)), key=_size)
    return Parts({phase: found.get(phase, Work()) for phase in (DRAFTING, LEVEL, *sizes, COMMIT)})


@dataclasses.dataclass(frozen=True)
class _Matrix:
    """A matrix of the stack that is argument `stack`, such as an expert's kernel. It counts as an argument itself."""

    stack: int
    shape: tuple[int, ...]
    dtype: Any
    sharding: NamedSharding
    ndim: int = 2


@dataclasses.dataclass
class _Tally:
    """The work of a phase so far; `read` are the arguments read whole, whose bytes are not in `bytes`."""

    flops: float = 0.0
    bytes: float = 0.0
    read: set[int] = dataclasses.field(default_factory=set)
    messages: list[Collective] = dataclasses.field(default_factory=list)
    stack: int | None = None  # the argument whose matrices caused the last message


class _Counter:
    """Walks a program and the programs inside it, and adds up their work by phase."""

    def __init__(self, arguments: list[Any], mesh: AnyMesh, own_parts: bool = False) -> None:
        """With `own_parts` the shapes in the program are not global, but those of one chip's parts."""
        self.arguments, self.mesh, self.own_parts = arguments, mesh, own_parts
        self.data = 1 if own_parts else mesh.shape["data"]
        self.phases: dict[Phase, _Tally] = defaultdict(_Tally)

    def work(self, phase: Phase) -> Work:
        """The work of a phase; its bytes are of partial reads, writes, and the arguments that it reads whole."""
        tally = self.phases[phase]
        read = sum(_bytes(self.arguments[i]) * self.share(i) for i in tally.read)
        return Work(tally.flops, tally.bytes + read, merged(tally.messages))

    def absorb(self, branches: "Sequence[_Counter]") -> None:
        """Adds the work of alternative programs, of which one runs: in each phase the costliest."""
        for phase in {phase for branch in branches for phase in branch.phases}:
            costliest = max(branches, key=lambda branch: (branch.work(phase).bytes, branch.work(phase).flops))
            tally, more = self.phases[phase], costliest.phases[phase]
            tally.flops += more.flops
            tally.bytes += more.bytes
            tally.read |= more.read
            tally.messages += more.messages
            tally.stack = more.stack

    def share(self, argument: int) -> float:
        """Share of an argument's elements on each chip."""
        if self.own_parts:
            return 1.0
        leaf = self.arguments[argument]
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) / max(1, math.prod(leaf.shape))

    def walk(self, jaxpr: core.Jaxpr, made_of: Sequence[Arguments], path: str, times: int) -> list[Arguments]:
        """Adds the work of a program that runs `times` times. Returns the `Arguments` of its results."""
        known: dict[Any, Arguments] = dict(zip(jaxpr.invars, made_of, strict=True))
        look = lambda atom: NONE if isinstance(atom, core.Literal) else known.get(atom, NONE)
        for eqn in jaxpr.eqns:
            inside = f"{path}/{eqn.source_info.name_stack}"
            operands = [look(atom) for atom in eqn.invars]
            results = self.enter(eqn, operands, inside, times)
            if results is None:
                results = [self.step(eqn, operands, phase_of(inside), times)] * len(eqn.outvars)
            known.update(zip(eqn.outvars, results, strict=True))
        return [look(atom) for atom in jaxpr.outvars]

    def enter(self, eqn: Any, operands: list[Arguments], path: str, times: int) -> list[Arguments] | None:
        """Walks the programs inside an operation. Returns the `Arguments` of its results; None without a program."""
        params = eqn.params
        match eqn.primitive.name:
            case "while":
                first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
                carry = operands[second:]
                self.walk(params["cond_jaxpr"].jaxpr, [*operands[:first], *carry], path, times)
                return self.walk(params["body_jaxpr"].jaxpr, [*operands[first:second], *carry], path, times)
            case "cond":
                branches = [_Counter(self.arguments, self.mesh, self.own_parts) for _ in params["branches"]]
                walks = zip(branches, params["branches"], strict=True)
                results = [counter.walk(branch.jaxpr, operands[1:], path, times) for counter, branch in walks]
                self.absorb(branches)
                return results[0]
            case "scan":
                return self.walk(params["jaxpr"].jaxpr, operands, path, times * params["length"])
            case "shard_map":
                inner = _Counter(self.arguments, self.mesh, own_parts=True)
                results = inner.walk(params["jaxpr"], operands, path, times)
                self.absorb([inner])
                return results
        for inner in params.values():
            if isinstance(inner, core.ClosedJaxpr) and len(inner.jaxpr.invars) == len(operands):
                return self.walk(inner.jaxpr, operands, path, times)
        return None

    def step(self, eqn: Any, operands: list[Arguments], phase: Phase, times: int) -> Arguments:
        """Adds the work of one operation. Returns the `Arguments` of its result."""
        name, out, inputs = eqn.primitive.name, eqn.outvars[0].aval, [atom.aval for atom in eqn.invars]
        known = all(made_of for made_of, array in zip(operands, inputs, strict=True) if array.shape)
        if name in SAME_VALUES or (name == "mul" and known) or (name == "slice" and out.size == inputs[0].size):
            return NONE.union(*operands)
        if name in WRITES and operands[0]:
            (changed, *_) = operands[0]
            self.phases[phase].bytes += times * _bytes(inputs[WRITES[name]]) * self.share(changed)
            return operands[0]
        if name in PARTIAL and operands[0]:
            (table, *_) = operands[0]
            argument, matrix = self.arguments[table], inputs[0].shape[1:]
            is_stack = argument.shape == inputs[0].shape and len(matrix) == 2 and not _is_batched(argument)
            if is_stack and out.shape in (matrix, (1, *matrix)):
                sharding = NamedSharding(argument.sharding.mesh, PartitionSpec(*argument.sharding.spec[1:]))
                self.arguments.append(_Matrix(table, matrix, argument.dtype, sharding))
                return frozenset([len(self.arguments) - 1])
            self.phases[phase].bytes += times * _bytes(out) * self.share(table)
            if out.ndim > 1 and not _is_batched(argument):  # rows on other chips are zeros: an all-reduce
                self.sum(out, _cuts(argument, 0), phase, times)
            return NONE
        if name == "dot_general":
            self.product(eqn, operands, phase, times)
        for made_of in operands:
            self.phases[phase].read |= made_of
        return NONE

    def product(self, eqn: Any, operands: list[Arguments], phase: Phase, times: int) -> None:
        """Adds a product: its operations, and an all-reduce if the contracted axis is sharded."""
        contracted, (batched, _) = eqn.params["dimension_numbers"]
        left, out = eqn.invars[0].aval, eqn.outvars[0].aval
        flops = 2 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in contracted[0])
        used = sorted({i for made_of in operands for i in made_of}, key=lambda i: _bytes(self.arguments[i]))
        if not used or self.arguments[used[-1]].ndim == CACHE:
            shared = math.prod(self.mesh.shape[axis] for axis in ("kv", "group", "rows")) if batched else 1
            self.phases[phase].flops += times * flops * (1.0 if self.own_parts else 1 / (self.data * shared))
            return
        weight = self.arguments[used[-1]]
        self.phases[phase].flops += times * flops * self.share(used[-1]) / self.data
        if jnp.issubdtype(weight.dtype, jnp.integer):  # quantised, perhaps with groups of inputs
            summed = [weight.ndim - 2]
        else:
            sides = zip(contracted, eqn.invars, operands, strict=True)
            mine = [axes for axes, atom, of in sides if used[-1] in of and atom.aval.shape == weight.shape]
            summed = [axis for axes in mine for axis in axes]
        # Devices send each other bfloat16 if the inputs have it, though the product is float32 (`model.layers`).
        sent = jax.ShapeDtypeStruct(out.shape, left.dtype if left.dtype == jnp.bfloat16 else out.dtype)
        stack = weight.stack if isinstance(weight, _Matrix) else None
        self.sum(sent, max((_cuts(weight, axis) for axis in summed), default=1), phase, times, stack)

    def sum(self, out: Any, chips: int, phase: Phase, times: int, stack: int | None = None) -> None:
        """Adds an all-reduce of a result over several chips. XLA sends those of a stack's matrices together."""
        if chips > 1 and not self.own_parts:
            tally, size = self.phases[phase], _bytes(out) // self.data
            if stack is not None and stack == tally.stack:
                size += tally.messages.pop().bytes
            tally.messages.append(Collective("all-reduce", size, times, chips))
            tally.stack = stack


def _bytes(array: Any) -> int:
    return leaf_bytes(array.shape, array.dtype)


def _cuts(argument: Any, axis: int) -> int:
    """Number of parts that an axis of an argument is sharded into."""
    return argument.shape[axis] // argument.sharding.shard_shape(argument.shape)[axis]


def _is_batched(argument: Any) -> bool:
    """Whether an argument is sharded along the batch, so that each chip has all rows of its sequences."""
    first, *_ = (*argument.sharding.spec, None)
    return "data" in (first or ())
