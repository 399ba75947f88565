"""The compiler's estimates for each part of a round and for prefill, beside their floors."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.decoding.prefill import FIRST_TOKEN
from jaxspec.decoding.prefill_buckets import accelerator_chunk
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.model.attention_kernel import BLOCK
from jaxspec.planning.chips import Slice
from jaxspec.planning.compilation import Compiled
from jaxspec.planning.estimate import ESTIMATED, Interval, Operation, coverage, seconds
from jaxspec.planning.program import PlacedProgram
from jaxspec.planning.rounds import Rounds
from jaxspec.planning.settings import PlanSettings
from jaxspec.planning.work import Parts, Phase, Work

PARTS = ("draft", "verify", "prefill")
NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "estimate_over_floor",
        "estimated_seconds_per_round",
        "estimate_coverage",
        "estimated_speedup",
        "scheduled_over_floor",
        "scheduled_seconds_per_round",
        "scheduled_speedup",
        "not_estimated",
    )
)

Compose = Callable[[Method], PlacedProgram]
Phases = Mapping[Phase, int | float]


def estimated(
    compiled: Compiled | None,
    compose: Compose,
    parts: Parts,
    rounds: Rounds,
    nodes: int | float,
    where: Slice,
    settings: PlanSettings,
) -> dict[str, Any]:
    """The plan's entries that need the compiled program; None if there is no compiled program.

    `floor_seconds`, the roofline without messages, is always there. So is the entry for prefill if `--prompt` is given.
    """
    works: dict[str, Work | None] = {
        "draft": parts.drafting(rounds.levels) if rounds.levels else None,
        "verify": parts.verification(nodes),
        "prefill": compose(parse_method("plain")).prefill_work(settings.prompt) if settings.prompt else None,
    }
    floors = {name: work and where.seconds(Work(work.flops, work.bytes)) for name, work in works.items()}
    known = {"floor_seconds": floors, "prefill": _prefill(settings, where, works["prefill"], floors["prefill"], None)}
    if compiled is None:
        return {**NOTHING, **known, "in_fast_memory": None, "slowest_operations": None}
    phases: dict[str, Phases] = {name: parts.phases_of(name, rounds.levels, nodes) for name in ("draft", "verify")}
    took = {name: compiled.seconds(of) if of else None for name, of in phases.items()}
    done = {name: compiled.during(of) for name, of in phases.items()}
    if settings.prompt:
        chunk = accelerator_chunk(settings.prompt, settings.batch_size)
        say(f"compiling prefill, {chunk} tokens at a time")
        reading = Compiled.of(
            compose(parse_method(settings.method)).trace_prefill(chunk),
            where,
            filled_on_average(settings.prompt, chunk, settings.context),
        )
        if reading is not None:
            chunks = math.ceil(settings.prompt / chunk)
            of = {each.phase for each in reading.operations}
            phases["prefill"] = {phase: 1 if phase == FIRST_TOKEN else chunks for phase in of}
            took["prefill"] = reading.seconds(phases["prefill"])
            done["prefill"] = list(reading.operations)
            known["prefill"] = _prefill(settings, where, works["prefill"], floors["prefill"], took["prefill"])
    over = {name: _over(took.get(name), floors[name]) for name in PARTS}
    speedup = _speedup(compose, took, rounds, where, settings)
    return {
        "estimate_over_floor": {name: part and part.ends() for name, part in over.items()},
        "estimated_seconds_per_round": {name: part and part.ends() for name, part in took.items() if name != "prefill"},
        "estimate_coverage": {name: coverage(done[name]) if done.get(name) else None for name in PARTS},
        "estimated_speedup": speedup and sorted(speedup.ends()),
        "scheduled_over_floor": {name: part and part.scheduled for name, part in over.items()},
        "scheduled_seconds_per_round": {
            name: part and part.scheduled for name, part in took.items() if name != "prefill"
        },
        "scheduled_speedup": speedup and speedup.scheduled,
        "not_estimated": {name: _kinds(of, where) for name, of in done.items()},
        **known,
        "in_fast_memory": compiled.in_fast_memory,
        "slowest_operations": _slowest(done, settings.explain, where),
    }


def filled_on_average(prompt: int, chunk: int, rows: int) -> float:
    """Mean share of a cache's rows that a chunk of a prompt reads: the rows before it, in whole kernel blocks."""
    starts = range(0, prompt, chunk)
    return sum(min(rows, -(-start // BLOCK) * BLOCK) for start in starts) / (len(starts) * rows)


def _over(took: Interval | None, floor: float | None) -> Interval | None:
    return took.over(floor) if took and floor else None


def _speedup(
    compose: Compose, took: Mapping[str, Interval | None], rounds: Rounds, where: Slice, settings: PlanSettings
) -> Interval | None:
    """Speedup over plain decoding, from the same end of both intervals; None if there is no tau or plain decoding does
    not fit."""
    if rounds.tau is None:
        return None
    say("compiling the loop of plain decoding, to compare with")
    program = compose(parse_method("plain"))
    traced = program.trace()
    plain = Compiled.of(traced, where)
    if plain is None:
        return None
    before = plain.seconds(program.count(traced).phases_of("verify", 0, 1))
    now = sum((part for part in took.values() if part and part is not took.get("prefill")), Interval())
    gains = (before.lower / now.lower, before.scheduled / now.scheduled, before.upper / now.upper)
    return Interval(*gains).times(rounds.tau)


def _prefill(
    settings: PlanSettings, where: Slice, work: Work | None, floor: float | None, took: Interval | None
) -> dict[str, Any] | None:
    """The entry for prefill; None without --prompt."""
    if work is None or not floor:
        return None
    return {
        "tokens": settings.prompt,
        "flops": work.flops,
        "floor_seconds": floor,
        "estimated_seconds": took and took.ends(),
        "scheduled_seconds": took and took.scheduled,
        "share_of_peak": took and [work.flops / (where.chip.flops * end) for end in reversed(took.ends())],
    }


def _kinds(done: list[Operation], where: Slice) -> dict[str, dict[str, int | float]]:
    """Operations without an estimate, by kind: count, bytes of main memory, and seconds that they add."""
    kinds = sorted({each.kind for each in done} - {ESTIMATED})
    of = lambda kind: [each for each in done if each.kind == kind]
    return {
        kind: {
            "count": sum(each.times for each in of(kind)),
            "bytes": sum(each.times * each.bytes for each in of(kind)),
            "seconds": sum(seconds(each, where) for each in of(kind)),
        }
        for kind in kinds
    }


def _slowest(done: Mapping[str, list[Operation]], count: int, where: Slice) -> list[dict[str, Any]]:
    """The `count` operations with the longest times. Operations of a drafting level count for one level."""
    every = [(part, each) for part, of in done.items() for each in of]
    return [
        {
            "part": part,
            "phase": each.phase,
            "seconds": seconds(each, where),
            "kind": each.kind,
            "times": each.times,
            "bytes": each.bytes,
            "result": ", ".join(map(str, each.instruction.results[:2])),
            "path": each.instruction.path,
        }
        for part, each in sorted(every, key=lambda one: -seconds(one[1], where))[:count]
    ]
