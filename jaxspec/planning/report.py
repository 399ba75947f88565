"""What `jaxspec plan` does: a model, a method and chips in; memory, time and gain out."""

import contextlib
import dataclasses
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from jaxspec import sharding
from jaxspec.decode import DRAFTING, LEVEL, VERIFICATION
from jaxspec.engine import ACCELERATOR_SIZES
from jaxspec.evaluate import environment
from jaxspec.linelog import write_whole
from jaxspec.mesh import read_sizes, shared_heads
from jaxspec.methods import Method, needs_costs, parse_method
from jaxspec.planning import hlo
from jaxspec.planning.command import Plan
from jaxspec.planning.devices import Slice, parse_slice
from jaxspec.planning.phases import COMMIT
from jaxspec.planning.program import Program, mesh_on, place
from jaxspec.planning.reckoning import plain_seconds, with_costs, with_messages
from jaxspec.planning.shapes import find_model, models_of
from jaxspec.planning.table import show
from jaxspec.planning.work import Collective, Parts, Work
from jaxspec.protocols import is_chain

DTYPE = jnp.dtype("bfloat16")
SETTINGS = ("model", "method", "topology", "device", "batch_size", "context", "quantize")


@dataclasses.dataclass(frozen=True)
class Rounds:
    """What rounds are like on average.

    Attributes:
        tau: tokens committed; None where nobody said.
        levels: drafted.
        nodes: verified, the root included.
    """

    tau: float | None
    levels: int | float
    nodes: int | float


def run(settings: Plan) -> None:
    """Plans, prints, and writes the file if one is wanted."""
    jax.config.update("jax_platforms", "cpu")  # no device is needed, and none should be taken
    found = plan(settings)
    show(found, Console(highlight=False))
    if settings.json is not None:
        write_whole(settings.json, json.dumps(found, indent=2) + "\n")


def plan(settings: Plan) -> dict[str, Any]:
    """All that `--json` writes.

    Raises:
        ValueError: a name, a method or a size that cannot be.
        NoCompilerError: for TPUs, where libtpu is not installed.
    """
    where, (config, path) = _where(settings), find_model(settings.model)
    if settings.batch_size < 1 or not 0 < settings.context <= config.usable_length:
        raise ValueError(
            f"--batch-size is at least 1 and --context from 1 to the {config.usable_length} positions of this model"
        )
    sizes = _cuts(settings, where)
    mesh = mesh_on(where, config, **sizes)

    def compose(method: Method) -> Program:
        spec = method.speculation(greedy=True, tree_sizes=ACCELERATOR_SIZES)
        return place(
            spec, models_of(config, path, method, DTYPE, settings.quantize), settings.batch_size, settings.context, mesh
        )

    method = parse_method(settings.method)
    plain = plain_seconds(where, compose)
    if needs_costs(method.builder):
        method = with_costs(method, where, compose, plain)
    program = compose(method)
    traced = program.trace()
    parts, rounds = program.count(traced), _rounds(settings, method, program)
    if where.is_tpu:
        say(f"compiling the loop of {settings.method} for {where}, which takes minutes for a large model")
        memory, parts, faults = _compile(program, traced, parts)
    else:
        memory, faults = _sizes(program), []
    return {
        "settings": {**{name: getattr(settings, name) for name in SETTINGS}, "dtype": str(DTYPE)},
        "resolved": str(method),
        "from": "the compiled loop, and data sheets" if where.is_tpu else "sizes and data sheets; nothing was compiled",
        "device": {"name": where.kind, "chips": where.chips, "mesh": sizes, **dataclasses.asdict(where.chip)},
        "versions": environment.versions() | ({"libtpu": version("libtpu")} if where.is_tpu else {}),
        "note": shared_heads(mesh, config),
        **_fit(memory, where),
        **_time(parts, rounds, where, plain),
        "collectives": _messages(parts),
        "faults": faults,
    }


def _where(settings: Plan) -> Slice:
    if (settings.topology is None) == (settings.device is None):
        raise ValueError("give either --topology, of TPUs, such as v5e:4x4, or --device, of GPUs, such as h100-80g:8")
    where = parse_slice(settings.topology or settings.device or "")
    if where.is_tpu != (settings.topology is not None):
        raise ValueError(f"{where}: TPUs go with --topology and GPUs with --device")
    return where


def _cuts(settings: Plan, where: Slice) -> dict[str, int]:
    sizes = {"data": 1, "model": where.chips} if settings.mesh is None else read_sizes(settings.mesh)
    if sizes["data"] * sizes["model"] != where.chips:
        raise ValueError(f"--mesh {settings.mesh}: data x model must be the {where.chips} chips of {where}")
    return sizes


def _rounds(settings: Plan, method: Method, program: Program) -> Rounds:
    """As a bench file says, or as told: trees of full size, and chains of as many nodes as levels."""
    builder = program.spec.builder
    if settings.levels is not None and not 0 <= settings.levels <= builder.depth:
        raise ValueError(f"--levels {settings.levels}: {settings.method} drafts 0 to {builder.depth} levels a round")
    levels = builder.depth if settings.levels is None else settings.levels
    nodes = levels + 1 if is_chain(builder) else max(program.spec.verify_sizes)
    with contextlib.suppress(ValueError):
        return Rounds(None if settings.tau is None else float(settings.tau), levels, nodes)
    assert settings.tau is not None
    try:
        methods = json.loads(Path(settings.tau).read_text(encoding="utf-8"))["methods"]
        found = {values["resolved"]: values for values in methods.values()} | methods
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--tau {settings.tau!r} is neither a number nor a file of `jaxspec bench --json`") from error
    values = found.get(settings.method) or found.get(str(method))
    if values is None:
        raise ValueError(
            f"--tau {settings.tau}: no method there is {settings.method!r}; there are {', '.join(methods)}"
        )
    return Rounds(values["tau"], values["depth_per_round"], values["nodes_per_round"] + 1)


def _compile(program: Program, traced: Any, parts: Parts) -> tuple[dict[str, int], Parts, list[str]]:
    """Bytes on each chip, the work with the messages that were compiled, and what the loop should not do."""
    sizes = _sizes(program)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        say(f"the compiler: {' '.join(str(error).split())[:300]}")
        return sizes, parts, []
    text, stats = compiled.as_text(), compiled.memory_analysis()
    known = sizes["weights"] + sizes["head_weights"] + sizes["kv"]
    memory = {
        **sizes,
        "state": stats.argument_size_in_bytes - known,
        "temporaries": stats.temp_size_in_bytes
        + stats.generated_code_size_in_bytes
        + (stats.output_size_in_bytes - stats.alias_size_in_bytes),
    }
    arguments = hlo.cut_arguments((program.models, program.state.cache))
    faults = hlo.gathered(text, arguments) + hlo.copied(text, hlo.cut_arguments(program.state.cache))
    return memory, with_messages(parts, hlo.collectives(text)), faults


def _sizes(program: Program) -> dict[str, int]:
    """Bytes on each chip by shapes. Of temporaries the largest: logits, their softmax, keys and values of nodes."""
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


def _fit(memory: dict[str, int], where: Slice) -> dict[str, Any]:
    limit = int(where.chip.memory)
    total = sum(memory.values())
    return {
        "fits": total <= limit,
        "bytes_per_chip": {**memory, "total": total, "limit": limit, "spare": limit - total},
    }


def _time(parts: Parts, rounds: Rounds, where: Slice, plain: float) -> dict[str, Any]:
    works = {"draft": parts.drafting(rounds.levels), "verify": parts.verification(rounds.nodes)}
    seconds = {name: where.seconds(work) for name, work in works.items()}
    total = sum(seconds.values())
    return {
        "tau": rounds.tau,
        "levels_per_round": rounds.levels,
        "nodes_per_round": rounds.nodes,
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


def _messages(parts: Parts) -> list[dict[str, Any]]:
    """Of each phase, once."""
    phases: dict[str, tuple[Collective, ...]] = {
        DRAFTING: parts.draft.collectives,
        LEVEL: parts.level.collectives,
        **{f"{VERIFICATION}{size}": work.collectives for size, work in parts.verify.items()},
        COMMIT: parts.commit.collectives,
    }
    return [{"phase": phase, **dataclasses.asdict(each)} for phase, several in phases.items() for each in several]


def say(text: str) -> None:
    """A remark, on stderr."""
    print(text, file=sys.stderr, flush=True)
