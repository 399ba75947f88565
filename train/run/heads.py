"""What training any head has in common: beside the frozen target, on its text, to a head on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
from flax import nnx

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.heads import write_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.drafter import Drafter, HeadShape, Models
from jaxspec.engine.head_weights import head_config
from jaxspec.host import compilation_cache, processes
from jaxspec.host.atomic import staged_by_all
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import say
from jaxspec.model.mesh import use
from jaxspec.model.mesh_rules import TRAINING
from jaxspec.model.placement import move, place, place_head
from jaxspec.train.data import prepare
from jaxspec.train.data.text import Windows
from jaxspec.train.run import feature_cache, figure
from jaxspec.train.run.acceptance import measure_chain
from jaxspec.train.run.held_out import mean_loss
from jaxspec.train.run.jobs import Job
from jaxspec.train.run.trainer import Loss, Measured, Task, fit

Head = TypeVar("Head", bound=nnx.Module)
_LONGEST = 2048


def train(
    job: Job,
    drafter: Drafter,
    shape: HeadShape,
    head: Head,
    loss: Loss,
    *,
    decodes: bool = True,
    write: Callable[[Path, Head], None] | None = None,
) -> Head:
    """Trains a head beside its frozen target and writes it to `job.out`, whole or not at all.

    Args:
        drafter: what drafts with it.
        shape: of the head, as its config.json will have it.
        head: initial weights, float32; donated.
        decodes: the whole target is there, so that it is measured how many drafts are accepted; of two heads that with
            the larger `tau` is better then, and otherwise that with the smaller held-out loss.
        write: writes the trained head into a folder, where that is no head but a checkpoint.

    Raises:
        ValueError: too little text, a learning rate that makes the loss overflow, or `job.out` exists or has no folder
            to lie in.
        DiskFullError: no room.
    """
    compilation_cache.keep_compilations()
    recipe, run, target, first = job.recipe, job.run, job.target, processes.is_first()
    if (cached := job.where.cache_features) is not None and jax.process_count() > 1:
        raise ValueError("--cache-features keeps the features of one process; leave it out on several hosts")
    if target.tokenizer is None:
        raise ValueError(f"{target.path} has no tokenizer, so no text can be made into tokens for it")
    length = min(job.where.context or _LONGEST, target.config.model.usable_length)
    if length < 4:
        raise ValueError(f"--context must be at least 4, not {length}")
    params = parameters.module_to_dict(head)
    with staged_by_all(job.out, sum(param.size for param in params.values()) * 4) as folder, use(target.mesh):
        if first:
            prepare.ready(run.data, target.tokenizer, job.sources, length, recipe)
        processes.wait()
        if target.mesh is not None:
            head = move(head, place(head, target.mesh, TRAINING))
        packed, held_out = prepare.windows(run.data)
        complete = measure = None
        if cached is not None:
            taps = drafter.taps(Models(target=target.target, draft=head))
            complete = feature_cache.open_cache(cached, target.target, packed, taps).complete
        if held_out is not None:
            measure = _measure(job, drafter if decodes else None, loss, held_out)
        else:
            say("no text was held out, so nothing is measured and the last weights are taken")
        trained, measured = fit(Task(loss, measure), head, target.target, packed, recipe, run, complete)
        if first:
            figure.draw(run.metrics, run.figure)
        with deferred():
            if write is None:
                write_head(folder, head_config(drafter, shape, target.config, job.where.save_dtype), trained)
            else:
                write(folder, trained)
    said = ""
    if measured is not None:
        name, value = ("chain tau", measured["tau"]) if decodes else ("loss", measured["loss"])
        said = f", {name} {value:.2f} on held-out text"
    say(f"wrote {job.out}: {drafter.name}, {sum(param.size for param in params.values()):,} parameters{said}")
    return trained


def _measure(job: Job, drafter: Drafter | None, loss: Loss, held_out: Windows) -> Callable[[Any], Measured]:
    """Weights of a head → its loss on held-out text, and how much of what the drafter drafts with it is accepted."""
    model, recipe = job.target, job.recipe
    lost = mean_loss(loss, held_out, max(1, recipe.batch_size // recipe.accumulate))
    accepted = None if drafter is None else measure_chain(model, drafter, held_out)

    def measure(head: Any) -> Measured:
        found = {} if accepted is None else accepted(_for_decoding(head, model))
        value = lost(head, model.target)
        return {"loss": value, **found, "score": found.get("tau", -value)}

    return measure


def _for_decoding(head: Any, model: Checkpoint) -> Any:
    """The weights in the target's dtype, where decoding wants them on its mesh."""
    narrow = jax.tree.map(lambda param: param.astype(model.target.norm[...].dtype), head)
    return narrow if model.mesh is None else move(narrow, place_head(narrow, model.mesh))
