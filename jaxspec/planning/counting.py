"""Counts the work of a traced program on each chip from its shapes: products, memory reads, and the messages of
sharding.

Memory is a lower bound: every weight and cache row that a part of a round uses is read once. Activations count as
staying on the chip, which has room for a few hundred of their rows."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

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
    """The work of each part of a round.

    Attributes:
        draft: drafting without the levels after the first: the drafter's pass over new tokens, and the first level.
        level: one further level.
        verify: verification, by the number of nodes.
        commit: the verdict, and appending the accepted tokens.
    """

    draft: Work
    level: Work
    verify: Mapping[int, Work]
    commit: Work

    @classmethod
    def gather(cls, works: Mapping[Phase, Work]) -> "Parts":
        """The parts, from the work of each phase."""
        sizes = {int(phase.removeprefix(VERIFICATION)): work for phase, work in works.items() if phase[-1].isdigit()}

        def of(phase):
            return works.get(phase, Work())

        return cls(draft=of(DRAFTING), level=of(LEVEL), verify=dict(sorted(sizes.items())), commit=of(COMMIT))

    def phases(self) -> dict[Phase, Work]:
        """The work of each phase: the inverse of `gather`."""
        verify = {f"{VERIFICATION}{size}": work for size, work in self.verify.items()}
        return {DRAFTING: self.draft, LEVEL: self.level, **verify, COMMIT: self.commit}

    def with_messages(self, messages: Mapping[Phase, tuple[Collective, ...]]) -> "Parts":
        """The same work with the compiled program's messages."""
        of = lambda phase, work: dataclasses.replace(work, collectives=messages.get(phase, ()))
        return Parts.gather({phase: of(phase, work) for phase, work in self.phases().items()})

    def size(self, nodes: int | float) -> int:
        """The smallest compiled tree size that holds this many nodes."""
        return min((size for size in self.verify if size >= nodes), default=max(self.verify))

    def drafting(self, levels: int | float) -> Work:
        """The work of drafting this many levels."""
        return self.draft + self.level.times(max(levels - 1, 0)) if levels else Work()

    def verification(self, nodes: int | float) -> Work:
        """The work of verifying and committing this many nodes, at the smallest compiled size that holds them."""
        return self.verify[self.size(nodes)] + self.commit

    def phases_of(self, part: str, levels: int | float, nodes: int | float) -> dict[Phase, int | float]:
        """How often each phase runs in the `draft` or the `verify` part of a round."""
        if part == "draft":
            return {DRAFTING: 1, LEVEL: max(levels - 1, 0)} if levels else {}
        return {f"{VERIFICATION}{self.size(nodes)}": 1, COMMIT: 1}


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
    """The work of the parts of a round, from a traced `loop.decode`.

    Args:
        traced: the result of `jax.jit(...).trace`.
        arguments: its arguments except static ones: `jax.ShapeDtypeStruct`s with shardings.
        mesh: the mesh of these shardings, from `sharding.split_mesh`.
    """
    leaves = jax.tree.leaves(arguments)
    closed = traced.jaxpr
    assert len(leaves) == len(closed.jaxpr.invars), "the program must have as many inputs as there are arguments"
    counter = _Counter(leaves, mesh)
    counter.walk(closed.jaxpr, [frozenset([i]) for i in range(len(leaves))], "", 1)
    return Parts.gather(counter.works())


@dataclasses.dataclass
class _Tally:
    """The work of a phase so far; `bytes` are those of partial reads and of writes, `read` the arguments read whole."""

    flops: float = 0.0
    bytes: float = 0.0
    read: set[int] = dataclasses.field(default_factory=set)
    messages: list[Collective] = dataclasses.field(default_factory=list)


class _Counter:
    """Walks a program and the programs inside it, and adds up their work by phase."""

    def __init__(self, arguments: Sequence[jax.ShapeDtypeStruct], mesh: AnyMesh, own_parts: bool = False) -> None:
        """With `own_parts` the shapes in the program are not global, but those of one chip's parts."""
        self.arguments, self.mesh, self.own_parts = arguments, mesh, own_parts
        of_one_chip = mesh.shape["kv"] * mesh.shape["group"] * mesh.shape["rows"]
        self.data = 1 if own_parts else mesh.shape["data"]
        self.attention = 1.0 if own_parts else 1 / (self.data * of_one_chip)  # share of attention on one chip
        self.phases: dict[Phase, _Tally] = defaultdict(_Tally)

    def works(self) -> dict[Phase, Work]:
        return {
            phase: Work(tally.flops, self.total_bytes(phase), merged(tally.messages))
            for phase, tally in self.phases.items()
        }

    def total_bytes(self, phase: Phase) -> float:
        """Bytes of a phase: its partial reads and its writes, and the arguments that it reads whole."""
        tally = self.phases[phase]
        return tally.bytes + sum(_bytes(self.arguments[i]) * self.share(i) for i in tally.read)

    def absorb(self, branches: "Sequence[_Counter]") -> None:
        """Adds the work of alternative programs, of which one runs: in each phase the costliest."""
        for phase in {phase for branch in branches for phase in branch.phases}:
            costliest = max(branches, key=lambda branch: (branch.total_bytes(phase), branch.phases[phase].flops))
            tally, more = self.phases[phase], costliest.phases[phase]
            tally.flops += more.flops
            tally.bytes += more.bytes
            tally.read |= more.read
            tally.messages += more.messages

    def share(self, argument: int) -> float:
        """Share of an argument's elements on each chip."""
        leaf: Any = self.arguments[argument]
        if self.own_parts:
            return 1.0
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) / max(1, math.prod(leaf.shape))

    def walk(self, jaxpr: core.Jaxpr, made_of: Sequence[Arguments], path: str, times: int) -> list[Arguments]:
        """Adds the work of a program that runs `times` times. Returns the `Arguments` of its results."""
        known: dict[Any, Arguments] = dict(zip(jaxpr.invars, made_of, strict=True))

        def look(atom):
            return NONE if isinstance(atom, core.Literal) else known.get(atom, NONE)

        for eqn in jaxpr.eqns:
            inside = f"{path}/{eqn.source_info.name_stack}"
            operands = [look(atom) for atom in eqn.invars]
            results = self.enter(eqn, operands, inside, times)
            if results is None:
                results = [self.step(eqn, operands, phase_of(inside), times)] * len(eqn.outvars)
            known.update(zip(eqn.outvars, results, strict=True))
        return [look(atom) for atom in jaxpr.outvars]

    def enter(self, eqn: core.JaxprEqn, operands: list[Arguments], path: str, times: int) -> list[Arguments] | None:
        """Walks the programs inside an operation, and returns the `Arguments` of its results; None if it has none."""
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

    def step(self, eqn: core.JaxprEqn, operands: list[Arguments], phase: Phase, times: int) -> Arguments:
        """Adds the work of one operation. Returns the `Arguments` of its result."""
        name, out = eqn.primitive.name, _shaped(eqn.outvars[0])
        known = [made_of for made_of, atom in zip(operands, eqn.invars, strict=True) if not _is_scalar(atom)]
        if name in SAME_VALUES or (name == "mul" and all(known)) or (name == "slice" and _same_size(eqn)):
            return frozenset[int]().union(*operands)
        if name in WRITES and operands[0]:
            (changed, *_), written = operands[0], _shaped(eqn.invars[WRITES[name]])
            self.phases[phase].bytes += times * _bytes(written) * self.share(changed)
            return operands[0]
        if name in PARTIAL and operands[0]:
            (table, *_) = operands[0]
            self.phases[phase].bytes += times * _bytes(out) * self.share(table)
            if out.ndim > 1 and not _is_batched(self.arguments[table]):  # rows on other chips are zeros: an all-reduce
                self.sum(out, _cuts(self.arguments[table], 0), phase, times)
            return NONE
        if name == "dot_general":
            self.product(eqn, operands, phase, times)
        for made_of in operands:
            self.phases[phase].read |= made_of
        return NONE

    def product(self, eqn: core.JaxprEqn, operands: list[Arguments], phase: Phase, times: int) -> None:
        """Adds a product: its operations, and an all-reduce if the contracted axis is sharded."""
        contracted, (batched, _) = eqn.params["dimension_numbers"]
        left, out = _shaped(eqn.invars[0]), _shaped(eqn.outvars[0])
        flops = 2 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in contracted[0])
        used = sorted({i for made_of in operands for i in made_of}, key=lambda i: _bytes(self.arguments[i]))
        if not used or self.arguments[used[-1]].ndim == CACHE:
            self.phases[phase].flops += times * flops * (self.attention if batched else 1 / self.data)
            return
        weight = self.arguments[used[-1]]
        self.phases[phase].flops += times * flops * self.share(used[-1]) / self.data
        if jnp.issubdtype(weight.dtype, jnp.integer):  # quantised, perhaps with groups of inputs
            summed = [weight.ndim - 2]
        else:
            sides = zip(contracted, eqn.invars, operands, strict=True)
            mine = [axes for axes, atom, of in sides if used[-1] in of and _shaped(atom).shape == weight.shape]
            summed = [axis for axes in mine for axis in axes]
        self.sum(out, max((_cuts(weight, axis) for axis in summed), default=1), phase, times)

    def sum(self, out: Any, chips: int, phase: Phase, times: int) -> None:
        """Adds an all-reduce of a result over this many chips; none for a single chip."""
        if chips > 1 and not self.own_parts:
            self.phases[phase].messages.append(Collective("all-reduce", _bytes(out) // self.data, times, chips))


def _bytes(array: Any) -> int:
    return leaf_bytes(array.shape, array.dtype)


def _shaped(atom: Any) -> Any:
    """Shape and dtype of a value in the program."""
    return atom.aval


def _is_scalar(atom: Any) -> bool:
    return isinstance(atom, core.Literal) or not _shaped(atom).shape


def _same_size(eqn: core.JaxprEqn) -> bool:
    return math.prod(_shaped(eqn.outvars[0]).shape) == math.prod(_shaped(eqn.invars[0]).shape)


def _cuts(argument: Any, axis: int) -> int:
    """Number of parts that an axis of an argument is sharded into."""
    return argument.shape[axis] // argument.sharding.shard_shape(argument.shape)[axis]


def _is_batched(argument: Any) -> bool:
    """Whether an argument is sharded along the batch, so that each chip has all rows of its sequences."""
    first, *_ = (*argument.sharding.spec, None)
    return "data" in (first or ())
