"""The phase of each instruction in a compiled program, including instructions that the compiler added."""

from jaxspec.planning import traffic
from jaxspec.planning.hlo import CompiledProgram, Computation, Instruction
from jaxspec.planning.work import COMMIT, Phase, phase_of


def phase_at(instruction: Instruction, before: Phase) -> Phase:
    """The phase by an instruction's scopes; without any, as for a copy that the compiler added, the phase `before`."""
    scoped = instruction.path and instruction.opcode not in traffic.FREE
    return phase_of(instruction.path) if scoped else before


def body_phase(program: CompiledProgram, loop: Instruction) -> Phase | None:
    """The phase in which the body of a loop begins; None if no instruction in it has a scope."""
    body = program.computations[loop.runs["body"]]
    inner = (each.path for each in body.instructions if loop.path and each.path.startswith(f"{loop.path}/"))
    return next(map(phase_of, inner), None)


def phases_by_name(program: CompiledProgram) -> dict[str, Phase]:
    """The phase of each instruction in the loop, by its name; of all instructions if the program has no loop.

    Names are unique in a program. The loop's own condition counts as committing.
    """
    found: dict[str, Phase] = {}
    _walk(program, program.loop, COMMIT, found)
    for each in program.computations[program.entry].instructions:
        if each.runs.get("body") == program.loop.name:
            _walk(program, program.computations[each.runs["condition"]], COMMIT, found)
    return found


def _walk(program: CompiledProgram, computation: Computation, phase: Phase, found: dict[str, Phase]) -> None:
    for each in computation.instructions:
        phase = phase_at(each, phase)
        found[each.name] = phase
        for role, name in (*each.runs.items(), *((branch, branch) for branch in each.branches)):
            begins = body_phase(program, each) if role == "body" else None
            _walk(program, program.computations[name], begins or phase, found)
