"""`jaxspec plan`: predicts memory, time and speedup for a model, a method and chips."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich.console import Console

from jaxspec.builders.eagle2 import Eagle2
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.prefill import FIRST_TOKEN
from jaxspec.decoding.prefill_buckets import accelerator_chunk
from jaxspec.engine.program import program_of
from jaxspec.host import environment
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.model import sharding
from jaxspec.model.attention_kernel import BLOCK
from jaxspec.model.backend import ACCELERATOR_TREE_SIZES
from jaxspec.model.sharding import read_sizes, shared_heads
from jaxspec.options.main import PlanSettings
from jaxspec.planning.chips import Slice, Work, parse_slice
from jaxspec.planning.counting import Parts, Phase
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.estimate import ESTIMATED, Interval, Operation, coverage, seconds
from jaxspec.planning.faults import find_faults
from jaxspec.planning.program import Compiled, PlacedProgram
from jaxspec.planning.rounds import Rounds, expected_rounds
from jaxspec.planning.shapes import find_model, models_of
from jaxspec.planning.table import show

DTYPE = jnp.dtype("bfloat16")
SETTINGS = ("model", "method", "topology", "device", "batch_size", "context", "quantize", "prompt")
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
WIDTHS = (1, 4, 16)  # nodes expanded at once, the widths that `jaxspec calibrate` measures
DEPTH = 5


def run(settings: PlanSettings) -> None:
    """Plans, prints the plan, and writes it to `--json` if given."""
    if settings.json is not None:
        check_folder(settings.json)
    jax.config.update("jax_platforms", "cpu")  # no device is needed, and none should be taken
    found = plan(settings)
    show(found, Console(highlight=False))
    if settings.json is not None:
        write_whole(settings.json, json.dumps(found, indent=2) + "\n")


def plan(settings: PlanSettings) -> dict[str, Any]:
    """The values that `--json` writes.

    Raises:
        ValueError: a model, a method or a number is invalid.
        NoCompilerError: the chips are TPUs, and libtpu is not installed.
    """
    where, target = _where(settings), find_model(settings.model, settings.quantize)
    config = target.config
    if settings.batch_size < 1 or not 0 < settings.context <= config.usable_length:
        raise ValueError(
            f"--batch-size must be at least 1, --context from 1 to the {config.usable_length} positions of this model"
        )
    if settings.prompt is not None and not 0 < settings.prompt <= settings.context:
        raise ValueError(f"--prompt {settings.prompt}: it must be from 1 to {settings.context}, the value of --context")
    if settings.explain < 0:
        raise ValueError(f"--explain {settings.explain}: it must be the number of operations to show")
    method = parse_method(settings.method)
    method = method.fitted(models_of(target, method, DTYPE).draft)
    rounds = expected_rounds(settings, method)
    sizes = _cuts(settings, where)
    mesh = mesh_on(where, config, **sizes)

    def compose(method: Method) -> PlacedProgram:
        program = program_of(method, models_of(target, method, DTYPE), greedy=True, tree_sizes=ACCELERATOR_TREE_SIZES)
        return PlacedProgram.place(program, settings.batch_size, settings.context, mesh)

    plain = plain_seconds(where, compose)
    if method.needs_costs:
        method = with_costs(method, where, compose, plain)
    program = compose(method)
    traced = program.trace()
    nodes = rounds.verified(program.spec)
    parts, memory, faults = program.count(traced), _sizes(program), []
    compiled, compiles = None, isinstance(mesh, Mesh)
    if compiles:
        say(f"compiling the loop of {settings.method} for {where}, which takes minutes for a large model")
        compiled = Compiled.of(traced, where)
    if compiled is not None:
        memory = _measured(compiled, memory)
        faults = find_faults(program, compiled.program, compiled.operations)
        parts = parts.with_messages(compiled.messages)
    return {
        "settings": {
            **{name: getattr(settings, name) for name in SETTINGS},
            "quantize": target.quantize,
            "dtype": str(DTYPE),
        },
        "resolved": str(method),
        "from": _origin(compiles, compiled is not None),
        "compiled": compiled is not None,
        "device": {"name": where.kind, "chips": where.chips, "mesh": sizes, **dataclasses.asdict(where.chip)},
        "versions": environment.versions() | ({"libtpu": version("libtpu")} if where.is_tpu else {}),
        "note": shared_heads(mesh, config),
        **_fit(memory, where, has_room=compiled is not None or not compiles),
        **_time(parts, rounds, nodes, where, plain),
        **estimated(compiled if where.is_tpu else None, compose, parts, rounds, nodes, where, settings),
        "collectives": [
            {"phase": phase, **dataclasses.asdict(each)}
            for phase, work in parts.phases().items()
            for each in work.collectives
        ],
        "faults": faults,
    }


def _where(settings: PlanSettings) -> Slice:
    if (settings.topology is None) == (settings.device is None):
        raise ValueError("give either --topology for TPUs, such as v5e:4x4, or --device for GPUs, such as h100-80g:8")
    where = parse_slice(settings.topology or settings.device or "")
    if where.is_tpu != (settings.topology is not None):
        raise ValueError(f"{where}: use --topology for TPUs and --device for GPUs")
    return where


def _cuts(settings: PlanSettings, where: Slice) -> dict[str, int]:
    sizes = {"data": 1, "model": where.chips} if settings.mesh is None else read_sizes(settings.mesh)
    if math.prod(sizes.values()) != where.chips:
        raise ValueError(f"--mesh {settings.mesh}: data x model x rows must be the {where.chips} chips of {where}")
    return sizes


def _origin(compiles: bool, compiled: bool) -> str:
    if compiled:
        return "the compiled loop, and data sheets"
    why = "the compiler found no room" if compiles else "nothing was compiled"
    return f"sizes and data sheets; {why}"


def _measured(compiled: Compiled, sizes: dict[str, int]) -> dict[str, int]:
    """Bytes on each chip; state and temporaries are the compiler's."""
    known = sizes["weights"] + sizes["head_weights"] + sizes["kv"]
    return {
        **sizes,
        "state": compiled.memory.argument_size_in_bytes - known,
        "temporaries": compiled.temporaries,
    }


def _sizes(program: PlacedProgram) -> dict[str, int]:
    """Bytes on each chip by shapes. Temporaries are the largest only: logits, their softmax, nodes' keys and values."""
    models, state, spec = program.models, program.state, program.spec
    kv = sharding.device_bytes(state.cache)
    batch, rows = state.tokens.shape
    nodes, cut = max(spec.builder.size, spec.builder.verified), program.mesh.shape["data"]
    logits = 4 * nodes * models.target.config.vocab_size * batch // cut
    return {
        "weights": sharding.device_bytes(models.target),
        "head_weights": sharding.device_bytes((models.draft, models.control)),
        "kv": kv,
        "state": sharding.device_bytes(state) - kv,
        "temporaries": 2 * logits + kv * nodes // rows,
    }


def _fit(memory: dict[str, int], where: Slice, has_room: bool) -> dict[str, Any]:
    """Whether the program fits: by its total bytes, and by the compiler (`has_room`)."""
    limit = int(where.chip.memory)
    total = sum(memory.values())
    return {
        "fits": has_room and total <= limit,
        "bytes_per_chip": {**memory, "total": total, "limit": limit, "spare": limit - total},
    }


def _time(parts: Parts, rounds: Rounds, nodes: int | float, where: Slice, plain: float) -> dict[str, Any]:
    works = {"draft": parts.drafting(rounds.levels), "verify": parts.verification(nodes)}
    seconds = {name: where.seconds(work) for name, work in works.items()}
    total = sum(seconds.values())
    return {
        "tau": rounds.tau,
        "levels_per_round": rounds.levels,
        "nodes_per_round": nodes,
        "flops_per_round": {name: work.flops for name, work in works.items()},
        "bytes_per_round": {name: work.bytes for name, work in works.items()},
        "seconds_per_round": seconds,
        "messages_per_round": {name: sum(each.count for each in work.collectives) for name, work in works.items()},
        "seconds_of_messages": {
            name: where.seconds(Work(collectives=work.collectives)) for name, work in works.items()
        },
        "plain_seconds": plain,
        "break_even_tau": total / plain,
        "speedup": None if rounds.tau is None else rounds.tau * plain / total,
    }


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


def plain_seconds(where: Slice, compose: Compose) -> float:
    """Roofline seconds of a round of plain decoding."""
    program = compose(parse_method("plain"))
    return where.seconds(program.count(program.trace()).verification(1))


def with_costs(method: Method, where: Slice, compose: Compose, plain: float) -> Method:
    """The method with the costs of drafting and verification, computed instead of measured by `jaxspec calibrate`.

    Args:
        plain: seconds of a round of plain decoding.
    """
    tree = lambda width: Eagle2(total=max(ACCELERATOR_TREE_SIZES), depth=DEPTH, width=width)

    # With a controller that stops early, the loop contains verification of every size.
    def probe(width):
        return dataclasses.replace(method, builder=tree(width), controller=BetaTS(), history=0)

    whole = compose(probe(WIDTHS[-1]))
    parts = whole.count(whole.trace())
    levels = {width: compose(probe(width)).count_drafting().level for width in WIDTHS[:-1]} | {WIDTHS[-1]: parts.level}

    def of(works):
        return tuple((nodes, where.seconds(work)) for nodes, work in works.items())

    return method.with_costs(CostTable(plain=plain, verify=of(parts.verify), level=of(levels)))
