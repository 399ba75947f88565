"""The plan of decoding on the device at hand, and what a profile of it says: parts of accelerator.py.

The program that is planned is the one that runs: compiled once, its text read for floors and estimates, and its
operations, as the profiler times them, added up by the same scopes.
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
from jaxspec.methods.method import parse_method
from jaxspec.model.config import LlamaConfig
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
UNNAMED = 0.05  # of what was profiled, above which the phases tell too little
Phases = Mapping[Phase, float]


@dataclasses.dataclass(frozen=True)
class Question:
    """What to plan and to profile.

    Attributes:
        rows: of the cache, half full when rounds begin.
        prompt: tokens whose prefill is planned.
        rounds: that are profiled.
        where: the device; None: no data sheet here is of it.
        copied: bytes a second that copying reached there, which floors go by where there is no data sheet.
    """

    shape: LlamaConfig
    dtype: str
    quantize: str | None
    methods: tuple[str, ...]
    acceptance: tuple[float, ...]
    rows: int
    prompt: int
    rounds: int
    where: Slice | None
    copied: float

    @property
    def request(self) -> Request:
        """A prompt of that length."""
        return Request([1] * self.prompt, SamplingParams(max_new_tokens=self.rows // 4))

    def floor(self, work: Work) -> float:
        """Seconds that work takes at least: by the data sheet, or else for its bytes alone."""
        if self.where is None:
            return work.bytes / self.copied
        return self.where.seconds(Work(work.flops, work.bytes))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A compiled program, and what is known of it before it runs.

    Attributes:
        run: what JAX compiled; `text`: what it says of itself.
        floors: seconds by phase; of prefill under the name of all of it.
        read: what the planner makes of it; None where there is no data sheet.
        chunks: of the prompt, where it is prefill.
    """

    program: Program
    placed: PlacedProgram
    run: Any
    text: CompiledProgram
    parts: Parts
    floors: Phases
    read: Compiled | None
    chunks: int = 0

    def floor(self, phases: Phases) -> float:
        """Of some phases, each so often."""
        return sum(times * self.floors[phase] for phase, times in phases.items())

    def estimate(self, phases: Phases) -> Interval | None:
        """The same by the compiler; None where it estimates no times, as on a GPU."""
        read = self.read
        return read.seconds(phases) if read is not None and read.where.is_tpu else None

    def describe(self) -> dict[str, Any]:
        """For the JSON."""
        phases = {phase: {"floor_seconds": floor, "estimated_seconds": None} for phase, floor in self.floors.items()}
        for phase, values in phases.items():
            times = self.prefill_phases if phase == PREFILL else {phase: 1.0}
            values["estimated_seconds"] = (found := self.estimate(times)) and found.ends()
        read = self.read
        faults = None if read is None else find_faults(self.placed, read.program, read.operations)
        return {"phases": phases, "faults": faults}

    @property
    def prefill_phases(self) -> Phases:
        """How often each phase is in reading the prompt."""
        of = {each.phase for each in self.read.operations} if self.read else set()
        return {phase: 1 if phase == FIRST_TOKEN else self.chunks for phase in of}


def plans(asked: Question) -> dict[str, Plan]:
    """Compiles the loop of each method, and prefill of plain decoding, for the device that JAX computes on."""
    programs = {name: _program(asked, name) for name in asked.methods}
    made: dict[str, Plan] = {}

    def put(name: str, make: Callable[[], Plan]) -> Callable[[], None]:
        return lambda: made.update({name: make()})

    jobs = {name: put(name, lambda one=one: _plan_loop(asked, one)) for name, one in programs.items()}
    jobs[PREFILL] = put(PREFILL, lambda: _plan_prefill(asked, programs[PLAIN]))
    compile_all(jobs, lambda name: f"{name} for the plan")
    return {name: made[name] for name in (PREFILL, *programs)}


def describe(asked: Question, made: Mapping[str, Plan]) -> dict[str, Any]:
    """What the plan says, for the JSON."""
    by = "the bandwidth of copying here, which reading alone may pass: no data sheet is known of this device"
    return {
        "chip": asked.where and asked.where.kind,
        "floors_by": asked.where.chip.source if asked.where else by,
        "layers": asked.shape.num_layers,
        "rows": asked.rows,
        "prompt": asked.prompt,
        "programs": {name: one.describe() for name, one in made.items()},
    }


def profiled(asked: Question, made: Mapping[str, Plan], model: Checkpoint) -> dict[str, Any]:
    """Runs what was planned under the profiler; prints measured beside planned."""
    rows, accounted, unnamed = [], {}, []
    for name, plan in made.items():
        method = PLAIN if name == PREFILL else name
        models = simulate.engine(model, parse_method(method), asked.acceptance).models
        with model.context():
            more, accounted[name] = (_prefill if name == PREFILL else _rounds)(asked, name, plan, models)
        rows += more
        if accounted[name]["unnamed_share"] > UNNAMED:
            unnamed.append(name)
    verdict = comparison.verdict(rows)
    if unnamed:
        verdict += f" Operations that no compiled text names took long in {', '.join(unnamed)}: phases miss them."
    print(f"{comparison.table(rows)}\n{verdict}", flush=True)
    return {"phases": [row.to_json() for row in rows], "verdict": verdict, "profiles": accounted}


def _program(asked: Question, name: str) -> Program:
    """The loop that a simulation runs, without weights."""
    method = parse_method(name)
    if name != PLAIN:
        method = simulate.simulated(method, asked.acceptance)
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
    run = traced.lower().compile()
    read = None if asked.where is None else Compiled.read(run, asked.where, filled)
    text = CompiledProgram.parse(run.as_text()) if read is None else read.program
    return Plan(program, placed, run, text, parts, floors, read, chunks)


Found = tuple[list[comparison.Compared], dict[str, Any]]


def _prefill(asked: Question, name: str, plan: Plan, models: Models) -> Found:
    """Reads the prompt: once to warm up, and once under the profiler."""
    rows = plan.placed.state.tokens.shape[1]

    def begin() -> DecodeState:
        state = Program(plan.program.spec, models).start([asked.request], (), rows)
        return dataclasses.replace(state, controller=None, trace=None)

    def read(state: DecodeState) -> DecodeState:
        return plan.run(models, state, jnp.int32(0), jnp.int32(END))

    jax.block_until_ready(read(begin()))
    state = jax.block_until_ready(begin())
    _, data = profile.record(lambda: read(state))
    took = profile.by_phase(profile.events(data, plan.text.module), plan.text)
    floor, estimate = plan.floors[PREFILL], plan.estimate(plan.prefill_phases)
    row = comparison.Compared(f"{name} of {asked.prompt}", floor, estimate, sum(took.phases.values()))
    return [row], took.to_json()


def _rounds(asked: Question, name: str, plan: Plan, models: Models) -> Found:
    """Rounds of a loop: some to warm up, some by the clock, and some under the profiler."""
    rounds = jnp.int32(asked.rounds)
    state = half_way(plan.program.spec, models, [asked.request], asked.rows)
    state = jax.block_until_ready(plan.run(models, state, rounds))
    before, began = int(state.round), time.perf_counter()
    state = jax.block_until_ready(plan.run(models, state, rounds))
    clock, between = time.perf_counter() - began, int(state.round)
    state, data = profile.record(lambda: plan.run(models, state, rounds))
    took = profile.by_phase(profile.events(data, plan.text.module), plan.text)
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
    """How often each phase was in a round, on average over rounds, by the part of a round that it is of."""
    drafted, count = float(np.mean(levels)), len(verified)
    sizes = Counter(f"{VERIFICATION}{parts.size(nodes + 1)}" for nodes in verified)
    found: dict[str, Phases] = {"verify": {size: times / count for size, times in sizes.items()}, "rest": {COMMIT: 1}}
    return ({"draft": {DRAFTING: 1, LEVEL: max(drafted - 1, 0)}} if drafted else {}) | found
