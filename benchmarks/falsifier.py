"""The plan of decoding on this device, compared with a profile: parts `plan` and `profile` of accelerator.py.

The planned program is the program that runs. It is compiled once: its text gives floors and estimates, and the times
that the profiler records for its operations are added up by the same scopes.
"""

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.costs.round_pieces import half_way
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.loop import DRAFTING, LEVEL, VERIFICATION
from jaxspec.decoding.prefill import END, FIRST_TOKEN
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.speculation import tree_sizes
from jaxspec.engine.program import Program, program_of
from jaxspec.evaluate import simulate
from jaxspec.host.compiling import compile_all
from jaxspec.methods.method import Method, parse_method
from jaxspec.model.config import LlamaConfig
from jaxspec.model.mesh import platform
from jaxspec.planning import comparison, profile
from jaxspec.planning.chips import Slice
from jaxspec.planning.compilation import Compiled
from jaxspec.planning.estimate import Interval
from jaxspec.planning.estimated import filled_on_average
from jaxspec.planning.faults import find_faults
from jaxspec.planning.hlo import CompiledProgram
from jaxspec.planning.program import PlacedProgram, one_chip
from jaxspec.planning.shapes import Target, models_of
from jaxspec.planning.work import COMMIT, Parts, Phase, Work

PLAIN, PREFILL = "plain", "prefill"
UNNAMED = 0.05  # share of the profiled time; with more, phases miss too much
NO_GRAPHS = {"xla_gpu_enable_command_buffer": ""}
"""Options for a GPU program whose kernels the profiler names. Kernels of a CUDA graph bear the graph's name instead: on
an H100 with JAX 0.11.2 these were 99.97 % of the time. Without graphs kernels take as long, but launching them takes
longer, so rounds by the clock are of the program with graphs."""
Phases = Mapping[Phase, float]


@dataclasses.dataclass(frozen=True)
class Question:
    """The shapes to plan and to profile.

    Attributes:
        acceptance: acceptance by position of the simulated drafters, by their names.
        rows: rows of the KV cache, which is half full when rounds begin.
        prompt: length of the prompt whose prefill is planned, in tokens.
        rounds: number of profiled rounds.
        where: the device; None: there is no data sheet of it.
        copied: measured bandwidth of copying in bytes/s, from which floors are computed if there is no data sheet.
    """

    shape: LlamaConfig
    dtype: str
    quantize: str | None
    methods: tuple[str, ...]
    acceptance: Mapping[str, tuple[float, ...]]
    rows: int
    prompt: int
    rounds: int
    where: Slice | None
    copied: float

    def accepted(self, method: Method) -> tuple[float, ...]:
        """Acceptance by position of the method's drafter; none for plain decoding."""
        return self.acceptance.get(method.drafter.name, ())

    @property
    def request(self) -> Request:
        """A request with a prompt of `prompt` tokens."""
        return Request([1] * self.prompt, SamplingParams(max_new_tokens=self.rows // 4))

    def floor(self, work: Work) -> float:
        """Least seconds that the work takes: by the data sheet, or else by its bytes and `copied`."""
        if self.where is None:
            return work.bytes / self.copied
        return self.where.seconds(Work(work.flops, work.bytes))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A compiled program, and its costs as planned before it runs.

    Attributes:
        program: the program before placement.
        placed: the program on the device.
        lowered: the program before compilation.
        run: the executable.
        parts: work of the parts of a round; empty for prefill.
        floors: least seconds by phase; the whole of prefill is one phase, `PREFILL`.
        read: the planner's reading of the executable; None if there is no data sheet.
        chunks: number of chunks of the prompt in prefill; 0 for a loop.
    """

    program: Program
    placed: PlacedProgram
    lowered: Any
    run: Any
    parts: Parts
    floors: Phases
    read: Compiled | None
    chunks: int = 0

    def floor(self, phases: Phases) -> float:
        """Least seconds of phases, each taken as often as `phases` says."""
        return sum(times * self.floors[phase] for phase, times in phases.items())

    def estimate(self, phases: Phases) -> Interval | None:
        """The compiler's estimate of the same in seconds; None if it estimates no times, as on a GPU."""
        read = self.read
        return read.seconds(phases) if read is not None and read.where.is_tpu else None

    def profiled(self, models: Models, state: DecodeState, *more: Any) -> tuple[DecodeState, profile.DeviceTime]:
        """Runs the program under the profiler: its result, and the device's time by phase.

        Args:
            models, state, more: the arguments of `run`. The state is donated.
        """
        run = self.lowered.compile(compiler_options=NO_GRAPHS) if platform() == "gpu" else self.run
        text = CompiledProgram.parse(run.as_text())
        state, data = profile.record(lambda: run(models, state, *more))
        return state, profile.by_phase(profile.events(data, text.module), text)

    def describe(self) -> dict[str, Any]:
        """Phases and faults for the JSON."""
        phases = {phase: {"floor_seconds": floor, "estimated_seconds": None} for phase, floor in self.floors.items()}
        for phase, values in phases.items():
            times = self.prefill_phases if phase == PREFILL else {phase: 1.0}
            values["estimated_seconds"] = (found := self.estimate(times)) and found.ends()
        read = self.read
        faults = None if read is None else find_faults(self.placed, read.program, read.operations)
        return {"phases": phases, "faults": faults}

    @property
    def prefill_phases(self) -> Phases:
        """How often each phase runs in the prefill of the prompt."""
        of = {each.phase for each in self.read.operations} if self.read else set()
        return {phase: 1 if phase == FIRST_TOKEN else self.chunks for phase in of}


def plans(asked: Question) -> dict[str, Plan]:
    """Compiles the loop of each method, and the prefill of plain decoding, for JAX's default device."""
    programs = {name: _program(asked, name) for name in asked.methods}
    made: dict[str, Plan] = {}

    def put(name: str, make: Callable[[], Plan]) -> Callable[[], None]:
        return lambda: made.update({name: make()})

    jobs = {name: put(name, lambda one=one: _plan_loop(asked, one)) for name, one in programs.items()}
    jobs[PREFILL] = put(PREFILL, lambda: _plan_prefill(asked, programs[PLAIN]))
    compile_all(jobs, lambda name: f"{name} for the plan")
    return {name: made[name] for name in (PREFILL, *programs)}


def describe(asked: Question, made: Mapping[str, Plan]) -> dict[str, Any]:
    """The plan for the JSON."""
    by = "the measured bandwidth of copying, which reading alone may exceed: this device has no data sheet here"
    return {
        "chip": asked.where and asked.where.kind,
        "floors_by": asked.where.chip.source if asked.where else by,
        "layers": asked.shape.num_layers,
        "rows": asked.rows,
        "prompt": asked.prompt,
        "programs": {name: one.describe() for name, one in made.items()},
    }


def profiled(asked: Question, made: Mapping[str, Plan], model: Checkpoint) -> dict[str, Any]:
    """Runs the planned programs under the profiler; prints measured times beside planned ones."""
    rows, accounted, unnamed = [], {}, []
    for name, plan in made.items():
        method = parse_method(PLAIN if name == PREFILL else name)
        models = simulate.engine(model, method, asked.accepted(method)).models
        with model.context():
            more, accounted[name] = (_prefill if name == PREFILL else _rounds)(asked, name, plan, models)
        rows += more
        if accounted[name]["unnamed_share"] > UNNAMED:
            unnamed.append(name)
    verdict = comparison.verdict(rows)
    if unnamed:
        verdict += f" In {', '.join(unnamed)}, operations that no compiled text names took long: phases miss them."
    print(f"{comparison.table(rows)}\n{verdict}", flush=True)
    return {"phases": [row.to_json() for row in rows], "verdict": verdict, "profiles": accounted}


def _program(asked: Question, name: str) -> Program:
    """The loop that a simulation of the method runs, on shapes without weights."""
    method = parse_method(name)
    if name != PLAIN:
        method = simulate.simulated(method, asked.accepted(method))
    models = models_of(Target(asked.shape, quantize=asked.quantize), method, jnp.dtype(asked.dtype))
    return program_of(method, models, greedy=True, tree_sizes=tree_sizes())


def _plan_loop(asked: Question, program: Program) -> Plan:
    placed = PlacedProgram.place(program, 1, asked.rows, one_chip())
    traced = placed.trace()
    parts = placed.count(traced)
    floors = {phase: asked.floor(work) for phase, work in parts.phases().items()}
    return _plan(asked, program, placed, traced, parts, floors)


def _plan_prefill(asked: Question, program: Program) -> Plan:
    chunk, rows = shapes(program.spec, [asked.request])
    placed = PlacedProgram.place(program, 1, rows, one_chip())
    traced, work = placed.trace_prefill(chunk), placed.prefill_work(asked.prompt)
    chunks, filled = math.ceil(asked.prompt / chunk), filled_on_average(asked.prompt, chunk, rows)
    floors = {PREFILL: asked.floor(work)}
    return _plan(asked, program, placed, traced, Parts.gather({}), floors, filled, chunks=chunks)


def _plan(
    asked: Question,
    program: Program,
    placed: PlacedProgram,
    traced: Any,
    parts: Parts,
    floors: Phases,
    filled: float = 1.0,
    chunks: int = 0,
) -> Plan:
    lowered = traced.lower()
    run = lowered.compile()
    read = None if asked.where is None else Compiled.read(run, asked.where, filled)
    return Plan(program, placed, lowered, run, parts, floors, read, chunks)


Found = tuple[list[comparison.Compared], dict[str, Any]]


def _prefill(asked: Question, name: str, plan: Plan, models: Models) -> Found:
    """Prefills the prompt: once to warm up, and once under the profiler."""
    rows = plan.placed.state.tokens.shape[1]

    def begin() -> DecodeState:
        state = Program(plan.program.spec, models).start([asked.request], (), rows)
        return dataclasses.replace(state, controller=None, trace=None)

    chunks = jnp.int32(0), jnp.int32(END)
    jax.block_until_ready(plan.run(models, begin(), *chunks))
    _, took = plan.profiled(models, jax.block_until_ready(begin()), *chunks)
    floor, estimate = plan.floors[PREFILL], plan.estimate(plan.prefill_phases)
    row = comparison.Compared(f"{name} of {asked.prompt}", floor, estimate, sum(took.phases.values()))
    return [row], took.to_json()


def _rounds(asked: Question, name: str, plan: Plan, models: Models) -> Found:
    """Runs a loop three times for `asked.rounds` rounds: to warm up, by the clock, and under the profiler."""
    rounds = jnp.int32(asked.rounds)
    state = half_way(plan.program.spec, models, [asked.request], asked.rows)
    state = jax.block_until_ready(plan.run(models, state, rounds))
    before, began = int(state.round), time.perf_counter()
    state = jax.block_until_ready(plan.run(models, state, rounds))
    clock, between = time.perf_counter() - began, int(state.round)
    state, took = plan.profiled(models, state, rounds)
    count = int(state.round) - between
    history = jax.tree.map(lambda column: np.asarray(column)[0, between : between + count], state.history)
    of = _phases(plan.parts, history.levels.tolist(), history.verified.tolist())
    rows = [
        comparison.Compared(
            f"{name}: {part}",
            plan.floor(phases),
            plan.estimate(phases),
            sum(took.phases.get(phase, 0.0) for phase in phases) / count,
        )
        for part, phases in of.items()
    ]
    whole = {phase: times for phases in of.values() for phase, times in phases.items()}
    clocked = clock / (between - before)
    rows.append(comparison.Compared(f"{name}: round by the clock", plan.floor(whole), plan.estimate(whole), clocked))
    return rows, {**took.to_json(), "rounds": count}


def _phases(parts: Parts, levels: Sequence[int], verified: Sequence[int]) -> dict[str, Phases]:
    """How often each phase ran per round, averaged over rounds; grouped by part of a round."""
    drafted, count = float(np.mean(levels)), len(verified)
    sizes = Counter(f"{VERIFICATION}{parts.size(nodes + 1)}" for nodes in verified)
    found: dict[str, Phases] = {"verify": {size: times / count for size, times in sizes.items()}, "rest": {COMMIT: 1}}
    return ({"draft": {DRAFTING: 1, LEVEL: max(drafted - 1, 0)}} if drafted else {}) | found
