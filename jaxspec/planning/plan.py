"""`jaxspec plan`: predicts memory, time and speedup for a model, a method and chips."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich.console import Console

from jaxspec.builders.eagle2 import Eagle2
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.costs.calibration import DEPTH, WIDTHS
from jaxspec.decoding.prefill import FIRST_TOKEN
from jaxspec.decoding.prefill_buckets import accelerator_chunk
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine.program import Program
from jaxspec.host import environment
from jaxspec.host.arguments import check_options, check_unused
from jaxspec.host.atomic import check_apart, check_folder, write_whole
from jaxspec.host.buckets import to_path
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.model import backend, sharding
from jaxspec.model.attention_kernel import BLOCK
from jaxspec.model.sharding import read_sizes, shared_heads
from jaxspec.options.by_command import PlanSettings
from jaxspec.planning.chips import Slice, Work, parse_slice
from jaxspec.planning.devices import mesh_on
from jaxspec.planning.estimate import ESTIMATED, Interval, Operation, coverage
from jaxspec.planning.faults import find_faults
from jaxspec.planning.program import Compiled, PlacedProgram
from jaxspec.planning.shapes import Target, find_model, models_of
from jaxspec.planning.table import show

DTYPE = jnp.dtype("bfloat16")
SETTINGS = ("model", "method", "topology", "device", "batch_size", "context", "quantize", "prompt")


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Means over rounds: committed tokens, drafted levels, and verified nodes with the root; None: not given."""

    tau: float | None
    levels: int | float
    nodes: int | float | None = None


def run(settings: PlanSettings) -> None:
    """Plans, prints the plan, and writes it to `--json` if given."""
    if settings.json is not None:
        check_folder(settings.json)
        check_apart(settings.json, to_path(settings.tau or ""), to_path(settings.model) / "config.json")
    jax.config.update("jax_platforms", "cpu")  # no device is needed, and none should be taken
    found = plan(settings)
    show(found, Console(highlight=False))
    if settings.json is not None:
        write_whole(settings.json, json.dumps(found, indent=2) + "\n")


def plan(settings: PlanSettings) -> dict[str, Any]:
    """The values that `--json` writes.

    Raises ValueError if a model, a method or a number is invalid; NoCompilerError as `mesh_on`.
    """
    where, target = _where(settings), find_model(settings.model, settings.quantize)
    _check(settings, target)
    method = parse_method(settings.method)
    method = method.fitted(models_of(target, method, DTYPE).draft)
    rounds = expected_rounds(settings, method)
    sizes = _mesh_sizes(settings, where)
    mesh = mesh_on(where, target.config, **sizes)
    with_options = where.is_tpu and (settings.tpu_options or backend.has_tpu_options())

    def compose(method: Method) -> PlacedProgram:
        by_size = backend.ACCELERATOR_TREE_SIZES if method.priced is None else backend.TREE_SIZES_BY_COST
        program = Program(method.speculation(True, tree_sizes=by_size), models_of(target, method, DTYPE))
        return PlacedProgram.place(program, settings.batch_size, settings.context, mesh)

    def compiled_loop(program: PlacedProgram) -> Compiled | None:
        return Compiled.of(program.traced, where, options=backend.TPU_LOOP_OPTIONS if with_options else None)

    plain = compose(parse_method("plain"))
    plain_runs = plain.parts.verification(1)
    plain_seconds = where.seconds(plain.parts.work(plain_runs))
    if method.needs_costs:
        method = with_costs(method, where, compose, plain_seconds)
    program = compose(method)
    largest = rounds.levels + 1 if method.builder.is_chain else max(program.spec.verify_sizes)
    nodes = largest if rounds.nodes is None else rounds.nodes
    parts, memory, faults = program.parts, _sizes(program), []
    in_prefill, room = None, True  # bytes of prefill's temporaries; whether the compiler found room for all programs
    compiled, origin = None, "sizes and data sheets; nothing was compiled"
    if isinstance(mesh, Mesh):
        say(f"compiling the loop of {settings.method} for {where}, which takes minutes for a large model")
        compiled, origin = compiled_loop(program), "sizes and data sheets; the compiler found no room"
        room = compiled is not None
    if compiled is not None:
        origin = f"the compiled loop{' with --tpu-options' * with_options}, and data sheets"
        arguments = sum(memory[name] for name in ("weights", "head_weights", "kv"))
        memory["state"] = compiled.memory.argument_size_in_bytes - arguments
        memory["temporaries"] = compiled.temporaries
        faults = find_faults(program, compiled)
        parts = parts.with_messages(compiled.messages)
    # The parts of the plan. A work or an estimate is None if there is no such part, or nothing was estimated.
    runs = {"draft": parts.drafting(rounds.levels), "verify": parts.verification(nodes)}
    works = {name: parts.work(each) if each else None for name, each in runs.items()}
    works["prefill"] = plain.prefill_work(settings.prompt) if settings.prompt else None
    floors = {name: work and where.seconds(Work(work.flops, work.bytes)) for name, work in works.items()}
    estimates, operations, speedup = dict[str, Interval | None].fromkeys(works), dict[str, list[Operation]](), None
    if compiled is not None and where.is_tpu:
        estimates |= {name: compiled.seconds(each) if each else None for name, each in runs.items()}
        operations |= {name: compiled.during(each) for name, each in runs.items()}
        if settings.prompt:
            found = _prefill(program, settings, where, with_options)
            estimates["prefill"], operations["prefill"], in_prefill = found or (None, [], None)
            room = found is not None
        if rounds.tau is not None:
            say("compiling the loop of plain decoding, to compare with")
            if before := compiled_loop(plain):
                now = map(sum, zip(*(estimates[name] or Interval() for name in runs), strict=True))
                ratios = zip(before.seconds(plain_runs), now, strict=True)
                speedup = Interval(*(one / other * rounds.tau for one, other in ratios))
    by_xla = _estimates(floors, estimates, operations, speedup)
    limit, total = int(where.chip.memory), sum(memory.values()) + max(0, (in_prefill or 0) - memory["temporaries"])
    return {
        "settings": {
            **{name: getattr(settings, name) for name in SETTINGS},
            "quantize": target.quantize,
            "dtype": str(DTYPE),
            "tpu_options": with_options,
        },
        "resolved": str(method),
        "from": origin,
        "compiled": compiled is not None,
        "device": {"name": where.kind, "chips": where.chips, "mesh": sizes, **dataclasses.asdict(where.chip)},
        "versions": environment.versions() | ({"libtpu": version("libtpu")} if where.is_tpu else {}),
        "padded_batch_size": len(program.state.length),
        "note": shared_heads(mesh, target.config),
        "fits": room and total <= limit,
        "bytes_per_chip": {
            **memory,
            "prefill_temporaries": in_prefill,
            "total": total,
            "limit": limit,
            "spare": limit - total,
        },
        **_time({name: works[name] or Work() for name in runs}, rounds, nodes, where, plain_seconds),
        **(by_xla if operations else dict.fromkeys(by_xla)),
        "floor_seconds": floors,
        "prefill": _prefill_entry(settings.prompt, works["prefill"], floors["prefill"], estimates["prefill"], where),
        "in_fast_memory": compiled.in_fast_memory if compiled is not None and operations else None,
        "slowest_operations": _slowest(operations, settings.explain) if operations else None,
        "collectives": [
            {"phase": phase, **dataclasses.asdict(each)}
            for phase, work in parts.works.items()
            for each in work.collectives
        ],
        "faults": faults,
    }


def expected_rounds(settings: PlanSettings, method: Method) -> Rounds:
    """The means of a method's rounds. Raises ValueError if they are impossible, or the file has none for the method."""
    depth = method.builder.depth
    levels = depth if settings.levels is None else settings.levels
    if not 0 <= levels <= depth:
        raise ValueError(f"--levels {levels}: {settings.method} drafts 0 to {depth} levels a round")
    if settings.tau is None:
        return Rounds(None, levels)
    try:
        tau = float(settings.tau)
    except ValueError:
        return _benched(settings, method)
    if not 0 < tau <= levels + 1:
        raise ValueError(
            f"--tau {settings.tau}: a round of {settings.method} that drafts {levels:g} levels commits {levels + 1:g} "
            "tokens at most"
        )
    return Rounds(tau, levels)


def _benched(settings: PlanSettings, method: Method) -> Rounds:
    """The means from a file of `bench --json`."""
    if settings.levels is not None:
        raise ValueError(f"--levels needs a number as --tau; the file {settings.tau} has its own number of levels")
    try:
        methods = json.loads(to_path(settings.tau or "").read_text(encoding="utf-8"))["methods"]
        found = {values["resolved"]: values for values in methods.values()} | methods
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--tau {settings.tau!r} is neither a number nor a file of `jaxspec bench --json`") from error
    values = found.get(settings.method) or found.get(str(method))
    if values is None:
        raise ValueError(f"--tau {settings.tau}: the file has no method {settings.method!r}, only {', '.join(methods)}")
    try:
        return Rounds(float(values["tau"]), float(values["depth_per_round"]), float(values["nodes_per_round"]) + 1)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"--tau {settings.tau}: {settings.method} in it lacks tau, depth_per_round or nodes_per_round"
        ) from error


def with_costs(method: Method, where: Slice, compose: Callable[[Method], PlacedProgram], plain: float) -> Method:
    """The method with costs that are computed, instead of measured by `jaxspec calibrate`; `plain` in seconds.

    `compose` makes the loop of a method for the planned chips.
    """

    # With a controller that stops early, the loop contains verification of every size.
    def probe(width: int) -> PlacedProgram:
        builder = Eagle2(total=max(backend.ACCELERATOR_TREE_SIZES), depth=DEPTH, width=width)
        return compose(dataclasses.replace(method, builder=builder, controller=BetaTS(), history=0))

    of = lambda works: tuple((nodes, where.seconds(work)) for nodes, work in works.items())
    whole = probe(WIDTHS[-1]).parts
    levels = {width: probe(width).count_drafting().level for width in WIDTHS[:-1]} | {WIDTHS[-1]: whole.level}
    return method.with_costs(CostTable(plain=plain, verify=of(whole.verify), level=of(levels)))


def filled_on_average(prompt: int, chunk: int, rows: int) -> float:
    """Mean share of a cache's rows that a chunk of a prompt reads: the rows before it, in whole kernel blocks."""
    starts = range(0, prompt, chunk)
    return sum(min(rows, -(-start // BLOCK) * BLOCK) for start in starts) / (len(starts) * rows)


def _where(settings: PlanSettings) -> Slice:
    if (settings.topology is None) == (settings.device is None):
        raise ValueError("give either --topology for TPUs, such as v5e:4x4, or --device for GPUs, such as h100-80g:8")
    where = parse_slice(settings.topology or settings.device or "")
    if where.is_tpu != (settings.topology is not None):
        raise ValueError(f"{where}: use --topology for TPUs and --device for GPUs")
    if not where.is_tpu:  # nothing is estimated
        check_unused(settings, "--device", "tpu_options", "explain")
    return where


def _check(settings: PlanSettings, target: Target) -> None:
    longest = target.config.usable_length
    if settings.batch_size < 1 or not 0 < settings.context <= longest:
        raise ValueError(f"--batch-size must be at least 1, --context from 1 to the {longest} positions of this model")
    if settings.prompt is not None and not 0 < settings.prompt <= settings.context:
        raise ValueError(f"--prompt {settings.prompt}: it must be from 1 to {settings.context}, the value of --context")
    check_options(settings, lambda number: number >= 0, "be the number of operations to show", "explain")


def _mesh_sizes(settings: PlanSettings, where: Slice) -> dict[str, int]:
    sizes = {"data": 1, "model": where.chips} if settings.mesh is None else read_sizes(settings.mesh)
    if math.prod(sizes.values()) != where.chips:
        raise ValueError(f"--mesh {settings.mesh}: data x model x rows must be the {where.chips} chips of {where}")
    if settings.context % (rows := sizes.get("rows", 1)):
        raise ValueError(f"--context {settings.context}: it must be a multiple of {rows}, the size of rows in --mesh")
    return sizes


def _prefill(
    program: PlacedProgram, settings: PlanSettings, where: Slice, with_options: bool
) -> tuple[Interval, list[Operation], int] | None:
    """The estimate of prefill of --prompt tokens, its operations, and the bytes of its temporaries.

    None if a compiled program does not fit.
    """
    assert settings.prompt is not None
    chunk = accelerator_chunk(settings.prompt, settings.batch_size)
    say(f"compiling prefill, {chunk} tokens at a time")
    filled = filled_on_average(settings.prompt, chunk, settings.context)
    options = backend.TPU_PREFILL_OPTIONS if with_options else None
    chunks, estimates, operations, temporaries = math.ceil(settings.prompt / chunk), [], list[Operation](), 0
    for traced, times in program.trace_prefill(chunk):
        compiled = Compiled.of(traced, where, filled, options)
        if compiled is None:
            return None
        phases = {each.phase for each in compiled.operations}
        runs = {phase: 1 if phase == FIRST_TOKEN else chunks * times for phase in phases}
        estimates.append(compiled.seconds(runs))
        operations += compiled.during(runs)
        temporaries = max(temporaries, compiled.temporaries)
    return Interval(*map(sum, zip(*estimates, strict=True))), operations, temporaries


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


def _time(works: Mapping[str, Work], rounds: Rounds, nodes: int | float, where: Slice, plain: float) -> dict[str, Any]:
    """The entries of a round by the data sheet, messages included."""
    messages = {name: work.collectives for name, work in works.items()}
    seconds = {name: where.seconds(work) for name, work in works.items()}
    total = sum(seconds.values())
    return {
        "tau": rounds.tau,
        "levels_per_round": rounds.levels,
        "nodes_per_round": nodes,
        "flops_per_round": {name: work.flops for name, work in works.items()},
        "bytes_per_round": {name: work.bytes for name, work in works.items()},
        "seconds_per_round": seconds,
        "messages_per_round": {name: sum(each.count for each in sent) for name, sent in messages.items()},
        "seconds_of_messages": {name: where.seconds(Work(collectives=sent)) for name, sent in messages.items()},
        "plain_seconds": plain,
        "break_even_tau": total / plain,
        "speedup": None if rounds.tau is None else rounds.tau * plain / total,
    }


def _estimates(
    floors: Mapping[str, float | None],
    estimates: Mapping[str, Interval | None],
    operations: Mapping[str, Sequence[Operation]],
    speedup: Interval | None,
) -> dict[str, Any]:
    """The entries that XLA estimates, from the floor, the estimate and the operations of each part."""
    over = {name: one.times(1 / floor) if (floor := floors[name]) and one else None for name, one in estimates.items()}
    of_round = {name: each for name, each in estimates.items() if name != "prefill"}
    ends = lambda found: {name: each and each.ends for name, each in found.items()}
    scheduled = lambda found: {name: each and each.scheduled for name, each in found.items()}
    return {
        "estimate_over_floor": ends(over),
        "estimated_seconds_per_round": ends(of_round),
        "estimate_coverage": {name: coverage(operations[name]) if operations.get(name) else None for name in estimates},
        "estimated_speedup": speedup and sorted(speedup.ends),
        "scheduled_over_floor": scheduled(over),
        "scheduled_seconds_per_round": scheduled(of_round),
        "scheduled_speedup": speedup and speedup.scheduled,
        "not_estimated": {name: _kinds(own) for name, own in operations.items()},
    }


def _prefill_entry(
    prompt: int | None, work: Work | None, floor: float | None, estimate: Interval | None, where: Slice
) -> dict[str, Any] | None:
    """The entry for prefill; None without --prompt."""
    if work is None:
        return None
    return {
        "tokens": prompt,
        "flops": work.flops,
        "floor_seconds": floor,
        "estimated_seconds": estimate and estimate.ends,
        "scheduled_seconds": estimate and estimate.scheduled,
        "share_of_peak": estimate and [work.flops / (where.chip.flops * end) for end in reversed(estimate.ends)],
    }


def _kinds(operations: Sequence[Operation]) -> dict[str, dict[str, int | float]]:
    """Operations without an estimate, by kind: count, bytes of main memory, and seconds that they add."""
    kinds = sorted({each.kind for each in operations} - {ESTIMATED})
    by_kind = {kind: [each for each in operations if each.kind == kind] for kind in kinds}
    return {
        kind: {
            "count": sum(each.times for each in own),
            "bytes": sum(each.times * each.bytes for each in own),
            "seconds": sum(each.seconds for each in own),
        }
        for kind, own in by_kind.items()
    }


def _slowest(operations: Mapping[str, Sequence[Operation]], count: int) -> list[dict[str, Any]]:
    """The `count` operations with the longest times. Operations of a drafting level count for one level."""
    every = [(name, each) for name, own in operations.items() for each in own]
    return [
        {
            "part": name,
            **{key: getattr(each, key) for key in ("phase", "seconds", "kind", "times", "bytes")},
            "result": ", ".join(map(str, each.instruction.results[:2])),
            "path": each.instruction.path,
        }
        for name, each in sorted(every, key=lambda one: -one[1].seconds)[:count]
    ]
