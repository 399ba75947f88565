"""What `jaxspec calibrate` does, and what decoding does where nobody ran it: costs measured, kept, and read again."""

import dataclasses
import hashlib
import sys
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jaxspec import costs
from jaxspec.builders.eagle2 import Eagle2
from jaxspec.controllers.fixed import Fixed
from jaxspec.costs import CostTable, Subject
from jaxspec.engine import Engine
from jaxspec.evaluate import environment
from jaxspec.evaluate.command import Calibrate
from jaxspec.evaluate.cost import seconds_per_unit
from jaxspec.evaluate.pieces import Job, draft_job, half_way, resume_job, resumes, target_job
from jaxspec.loading import Checkpoint, find_head, load
from jaxspec.methods import DRAFTERS, Method, drafter_of, parse_method
from jaxspec.request import Request, shapes
from jaxspec.weights import load_head

WIDTHS = (1, 4, 16)  # nodes expanded at once; what lies between is interpolated
DEPTH = 5
TOKENS = 128  # of a prompt, and as many new ones: attention reads that many rows on average


def run(settings: Calibrate) -> None:
    """Measures, keeps the table and prints it."""
    model = load(settings.target, settings.dtype, settings.devices.open(), settings.quantize)
    method = method_of(model.path, settings.head)
    subject, table = describe(model, method), measure(model, method, load_head(model, method))
    keep(subject, table)
    show(table, Console())


def method_of(path: Path, head: str) -> Method:
    """What is measured for a head: its name, its path, or DRAFTER[@HEAD] with settings if wanted.

    Raises:
        ValueError: it is none of these, or `plain`, which drafts nothing.
    """
    name = head.partition("@")[0].partition(",")[0].partition("+")[0]
    if name == "plain":
        raise ValueError("plain drafts nothing, so there is nothing to calibrate; name a drafter's head")
    if name in DRAFTERS:
        return parse_method(head)
    return dataclasses.replace(parse_method("ngram"), drafter=drafter_of(path, head), head=head)


def costs_of(model: Checkpoint, method: Method, weights: Any) -> CostTable:
    """The table of the method's drafter on this device: the one that is kept, else measured now, which stderr says.

    Args:
        weights: of the drafter.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"the builder of {method} decides by what drafting and verification cost, of which several processes would "
            "each measure something else; write the costs into the method"
        )
    subject = describe(model, method)
    try:
        return costs.read(subject)
    except FileNotFoundError:
        reason = f"the builder of {method} needs to know what drafting and verification cost on this device"
    except ValueError as error:
        reason = str(error)
    say(f"{reason}: measuring it once, which takes a minute or so")
    table = measure(model, method, weights)
    keep(subject, table)
    return table


def keep(subject: Subject, table: CostTable) -> None:
    """Writes the table into the cache folder, if that can be written, and says where."""
    try:
        costs.write(subject, table)
        say(f"kept in {subject.file}")
    except OSError as error:
        say(f"not kept, since {subject.file.parent} cannot be written ({error.strerror})")


def describe(model: Checkpoint, method: Method) -> Subject:
    """What the times of a method's drafter depend on."""
    digest = lambda folder: hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    versions = environment.versions()
    return Subject(
        target=digest(model.path),
        head="" if method.head is None else digest(find_head(model.path, method.head)),
        drafter=repr(method.drafter),
        dtype=", ".join(filter(None, (str(model.target.norm[...].dtype), model.config.quantize))),
        device=environment.device() + ("" if model.mesh is None else f", mesh {dict(model.mesh.shape)}"),
        versions={name: versions[name] for name in ("jaxspec", "jax", "jaxlib")},
    )


def measure(model: Checkpoint, method: Method, weights: Any) -> CostTable:
    """Times drafted levels and verification, one sequence of half as many tokens as its cache has rows.

    Levels are EAGLE-2's, since the builders that use the table grow theirs in the same way.
    """
    probe = dataclasses.replace(method, builder=Eagle2(depth=DEPTH), controller=Fixed())
    engine = Engine(model, probe, draft=weights)
    sizes, models = engine.tree_sizes, engine.models
    tokens = min(TOKENS, model.config.model.usable_length // 2)
    requests = [Request([0] * tokens, tokens, 0.0, 0, 1.0, 0, 0)]
    spec = lambda width: dataclasses.replace(
        probe, builder=Eagle2(total=max(*sizes, 2), depth=DEPTH, width=width)
    ).speculation(greedy=True)
    rows = shapes(spec(1), requests)[1]
    with engine.model.context():
        forwards = {size: target_job(models.target, 1, size, rows) for size in {1, *sizes}}
        jobs: dict[tuple[str, int], Job] = {("plain", 1): forwards[1]}
        for width in WIDTHS:
            state = half_way(spec(width), models, requests, rows)
            jobs["level", width] = draft_job(spec(width), models, state)
        wide = spec(WIDTHS[-1])
        state = half_way(wide, models, requests, rows)
        resumed = resumes(wide, models, state)
        for size in sizes:
            jobs["verify", size] = resume_job(wide, models, state, size) if resumed else forwards[size]
        # What is one and the same is timed once: verifying one node takes exactly a forward, unless drafting did part.
        distinct = list(dict.fromkeys(jobs.values()))
        found = dict(zip(distinct, seconds_per_unit(distinct), strict=True))
        seconds = {piece: found[job] for piece, job in jobs.items()}
    by_nodes = lambda piece: tuple((nodes, taken) for (name, nodes), taken in seconds.items() if name == piece)
    return CostTable(plain=seconds["plain", 1], verify=by_nodes("verify"), level=by_nodes("level"))


def show(table: CostTable, console: Console) -> None:
    """Prints the table, in milliseconds and in forwards of the target over one token."""
    shown = Table("piece", "nodes", "ms", "s_t(1)", box=None, pad_edge=False)
    rows = [("one token", 1, table.plain)]
    rows += [("a level drafted", nodes, seconds) for nodes, seconds in table.level]
    rows += [("verification", nodes, seconds) for nodes, seconds in table.verify]
    for name, nodes, seconds in rows:
        shown.add_row(name, str(nodes), f"{1e3 * seconds:.3f}", f"{seconds / table.plain:.3f}")
    console.print(shown)


def say(text: str) -> None:
    """A remark, on stderr."""
    print(text, file=sys.stderr, flush=True)
