"""The phase of each instruction in a compiled program, including instructions that the compiler added."""

from jaxspec.planning import traffic
from jaxspec.planning.hlo import CompiledProgram, Instruction
from jaxspec.planning.work import Phase, phase_of


def phase_at(instruction: Instruction, before: Phase) -> Phase:
    """The phase by an instruction's scopes; without any, as for a copy that the compiler added, the phase `before`."""
    scoped = instruction.path and instruction.opcode not in traffic.FREE
    return phase_of(instruction.path) if scoped else before


def body_phase(program: CompiledProgram, loop: Instruction) -> Phase | None:
    """The phase in which the body of a loop begins; None if no instruction in it has a scope."""
    body = program.computations[loop.runs["body"]]
    inner = (each.path for each in body.instructions if loop.path and each.path.startswith(f"{loop.path}/"))
    return next(map(phase_of, inner), None)
