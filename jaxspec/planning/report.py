"""`jaxspec plan`: predicts memory, time and speedup for a model, a method and chips."""

import dataclasses
import json
import math
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich.console import Console

from jaxspec.engine.program import program_of
from jaxspec.host import environment
from jaxspec.host.atomic import check_folder, write_whole
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, parse_method
from jaxspec.model import sharding
from jaxspec.model.backend import ACCELERATOR_TREE_SIZES
from jaxspec.model.sharding import read_sizes, shared_heads
from jaxspec.planning.chips import Slice, parse_slice
from jaxspec.planning.compilation import Compiled
from jaxspec.planning.estimated import estimated
from jaxspec.planning.faults import find_faults
from jaxspec.planning.program import PlacedProgram, mesh_on
from jaxspec.planning.roofline import plain_seconds, with_costs
from jaxspec.planning.rounds import Rounds, expected_rounds
from jaxspec.planning.settings import PlanSettings
from jaxspec.planning.shapes import find_model, models_of
from jaxspec.planning.table import show
from jaxspec.planning.work import Parts, Work

DTYPE = jnp.dtype("bfloat16")
SETTINGS = ("model", "method", "topology", "device", "batch_size", "context", "quantize", "prompt")


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
