"""Compiles a placed program for absent chips, and reads the compiler's memory report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxspec.host.terminal import say
from jaxspec.planning.chips import Slice
from jaxspec.planning.estimate import Interval, Operation, interval, of_phase, operations
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.work import Collective, Phase, merged

LARGE = 2**20  # fewest bytes of an array that is reported


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        operations: those of one round if the program is a loop, otherwise of one run.
        memory: JAX's `memory_analysis()`.
    """

    program: CompiledProgram
    operations: Sequence[Operation]
    memory: Any
    where: Slice

    @classmethod
    def of(cls, traced: Any, where: Slice, filled: float = 1.0) -> "Compiled | None":
        """Compiles a traced program; None if it does not fit in memory.

        Args:
            filled: share of the cache's rows that hold tokens, on average.
        """
        try:
            compiled = traced.lower().compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            say(f"the compiler: {' '.join(str(error).split())[:300]}")
            return None
        return cls.read(compiled, where, filled)

    @classmethod
    def read(cls, compiled: Any, where: Slice, filled: float = 1.0) -> "Compiled":
        """Reads a program that JAX compiled; `filled` as in `of`."""
        program = CompiledProgram.parse(compiled.as_text())
        return cls(program, operations(program, where, filled), compiled.memory_analysis(), where)

    @property
    def temporaries(self) -> int:
        """Bytes on a chip of temporaries, code, and outputs that reuse no argument's buffer."""
        stats = self.memory
        unaliased = stats.output_size_in_bytes - stats.alias_size_in_bytes
        return stats.temp_size_in_bytes + stats.generated_code_size_in_bytes + unaliased

    @property
    def messages(self) -> Mapping[Phase, tuple[Collective, ...]]:
        """The messages of each phase; equal ones are counted together."""
        found: dict[Phase, list[Collective]] = {}
        for each in self.operations:
            if each.message:
                many = dataclasses.replace(each.message, count=each.message.count * each.times)
                found.setdefault(each.phase, []).append(many)
        return {phase: merged(messages) for phase, messages in found.items()}

    @property
    def in_fast_memory(self) -> list[str]:
        """Large arrays that stay in fast memory for the whole loop. A large model's weights do not fit there."""
        entry = self.program.computations[self.program.entry]
        loops = [each for each in entry.instructions if each.opcode == "while"]
        return [str(each) for each in (loops[-1].results if loops else ()) if each.fast and each.bytes >= LARGE]

    def seconds(self, phases: Mapping[Phase, int | float]) -> Interval:
        """Estimated seconds of phases, each repeated as often as `phases` says."""
        parts = (interval(of_phase(self.operations, phase), self.where).times(n) for phase, n in phases.items())
        return sum(parts, Interval())

    def during(self, phases: Mapping[Phase, int | float]) -> list[Operation]:
        """Operations of the phases that run at least once."""
        return of_phase(self.operations, *(phase for phase, number in phases.items() if number))
