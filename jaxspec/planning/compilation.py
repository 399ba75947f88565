"""Compiles a placed program for absent chips, and reads the compiler's memory report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxspec.host.terminal import say
from jaxspec.planning.chips import Slice
from jaxspec.planning.estimate import Interval, Operation, interval, of_phase, operations, partly_filled
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.work import Collective, Phase, merged

LARGE = 2**20  # bytes of an array that is worth naming


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        operations: of a round of a loop, or of one pass of what is no loop.
        memory: what `memory_analysis` says.
    """

    program: CompiledProgram
    operations: Sequence[Operation]
    memory: Any
    where: Slice

    @classmethod
    def of(cls, traced: Any, where: Slice, filled: float = 1.0) -> "Compiled | None":
        """Compiles what was traced; None if the compiler found no room for it.

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
        """Reads what JAX compiled; `filled` as in `of`."""
        program = CompiledProgram.parse(compiled.as_text())
        return cls(program, partly_filled(operations(program, where), filled), compiled.memory_analysis(), where)

    @property
    def temporaries(self) -> int:
        """Bytes of a chip: temporaries, code, and output that takes no argument's place."""
        stats = self.memory
        unaliased = stats.output_size_in_bytes - stats.alias_size_in_bytes
        return stats.temp_size_in_bytes + stats.generated_code_size_in_bytes + unaliased

    @property
    def messages(self) -> Mapping[Phase, tuple[Collective, ...]]:
        """Of each phase, those alike counted together."""
        found: dict[Phase, list[Collective]] = {}
        for each in self.operations:
            if each.message:
                many = dataclasses.replace(each.message, count=each.message.count * each.times)
                found.setdefault(each.phase, []).append(many)
        return {phase: merged(messages) for phase, messages in found.items()}

    @property
    def held_fast(self) -> list[str]:
        """Large arrays that lie in fast memory from before the loop on, as no weight of a large model can."""
        entry = self.program.computations[self.program.entry]
        loops = [each for each in entry.instructions if each.opcode == "while"]
        return [str(each) for each in (loops[-1].results if loops else ()) if each.fast and each.bytes >= LARGE]

    def seconds(self, phases: Mapping[Phase, int | float]) -> Interval:
        """Of some phases, each so many times."""
        parts = (interval(of_phase(self.operations, phase), self.where).times(n) for phase, n in phases.items())
        return sum(parts, Interval())

    def during(self, phases: Mapping[Phase, int | float]) -> list[Operation]:
        """What some phases do; those that do not run left out."""
        return of_phase(self.operations, *(phase for phase, number in phases.items() if number))
