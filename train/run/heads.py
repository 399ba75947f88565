"""What training any head has in common: the frozen target, its text, measurements, and the head on disk."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.checkpoint import parameters
from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.loading import Checkpoint, compute_dtype
from jaxspec.host import compilation_cache, processes
from jaxspec.host.atomic import staged_by_all
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import say
from jaxspec.model.llama import Llama
from jaxspec.model.mesh import use
from jaxspec.model.mesh_rules import TRAINING
from jaxspec.model.placement import move, place, place_head
from jaxspec.train.data import prepare
from jaxspec.train.data.text import Windows
from jaxspec.train.methods.packed import hidden_states
from jaxspec.train.run import feature_cache, figure
from jaxspec.train.run.acceptance import measure_chain
from jaxspec.train.run.folder import Run
from jaxspec.train.run.held_out import mean_loss
from jaxspec.train.run.recipe import Recipe
from jaxspec.train.run.trainer import Loss, Task, fit

Head = TypeVar("Head", bound=nnx.Module)
Acceptance = Callable[[Any], dict[str, Any]]
_LONGEST = 2048


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train a head on, and where to put it.

    Attributes:
        length: of a window, in tokens; None for the target's context, at most 2048.
        cache: folder for the target's features; None computes them in every step.
        strict: refuse the first conversation that the chat template cannot write.
    """

    target: Checkpoint
    sources: prepare.Sources
    out: Path
    run: Run
    recipe: Recipe
    length: int | None = None
    cache: Path | None = None
    strict: bool = False


def train(
    job: Job,
    drafter: str,
    head: Head,
    loss: Loss,
    write: Callable[[Path, Head], None],
    acceptance: Callable[[Checkpoint, str, Windows], Acceptance] = measure_chain,
) -> Head:
    """Trains a head beside its frozen target and writes it to `job.out`, whole or not at all.

    Args:
        drafter: what decodes with it, and measures its acceptance.
        head: initial weights, float32; donated.
        write: writes the trained head into a folder.
        acceptance: (target, drafter, held-out text) → what measures how much is accepted, whose `tau` is to be high;
            where it measures nothing, the held-out loss is to be low.

    Raises:
        ValueError: too little text, or a learning rate that makes the loss overflow.
        CheckpointError: `out` exists, or the folder that is to hold it does not.
        DiskFullError: no room.
    """
    compilation_cache.keep_compilations()
    recipe, run, target, first = job.recipe, job.run, job.target, processes.is_first()
    if job.cache is not None and jax.process_count() > 1:
        raise ValueError("--cache-features keeps the features of one process; leave it out on several hosts")
    if target.tokenizer is None:
        raise ValueError(f"{target.path} has no tokenizer, so no text can be made into tokens for it")
    length = min(job.length or _LONGEST, target.config.model.usable_length)
    if length < 4:
        raise ValueError(f"--context must be at least 4, not {length}")
    params = parameters.module_to_dict(head)
    with staged_by_all(job.out, sum(param.size for param in params.values()) * 4) as folder, use(target.mesh):
        if first:
            prepare.ready(run, target.tokenizer, job.sources, length, recipe, job.strict)
        processes.wait()
        if target.mesh is not None:
            head = move(head, place(head, target.mesh, TRAINING))
        packed, held_out = prepare.windows(run)
        complete = feature_cache.open_cache(job.cache, target.target, packed).complete if job.cache else None
        measure = None
        if held_out is not None:
            accepted = acceptance(target, drafter, held_out)
            lost = mean_loss(loss, held_out, max(1, recipe.batch_size // recipe.accumulate))
            measure = partial(_measure, lost, accepted, target)
        else:
            say("no text was held out, so nothing is measured and the last weights are taken")
        trained, measured = fit(Task(loss, measure), head, target.target, packed, recipe, run, complete)
        if first:
            figure.draw(run.metrics, run.figure)
        with deferred():
            write(folder, trained)
    said = ""
    if measured is not None:
        name, value = ("chain tau", measured["tau"]) if "tau" in measured else ("loss", measured["loss"])
        said = f", {name} {value:.2f} on held-out text"
    say(f"wrote {job.out}: {drafter}, {sum(param.size for param in params.values()):,} parameters{said}")
    return trained


def target_features(target: Llama, batch: Windows) -> Float[Array, "B T D"]:
    """The target's features of a batch: computed here, unless they came with it."""
    if batch.features is not None:
        return jnp.asarray(batch.features)
    return jax.lax.stop_gradient(hidden_states(target, jnp.asarray(batch.tokens), jnp.asarray(batch.segment)))


def _measure(lost: Any, accepted: Any, model: Checkpoint, head: Any) -> dict[str, Any]:
    narrow = jax.tree.map(lambda param: param.astype(model.target.norm[...].dtype), head)
    found = accepted(narrow if model.mesh is None else move(narrow, place_head(narrow, model.mesh)))
    loss = lost(head, model.target)
    return {"loss": loss, **found, "score": found.get("tau", -loss)}


def no_acceptance(target: Checkpoint, drafter: str, held_out: Windows) -> Acceptance:
    """Measures nothing: for drafters that are trained without the target to decode with."""
    return lambda weights: {}


def folder_of(target: Path, drafter: str, out: Path | None) -> Path:
    """Where a head goes: `out`, or CKPT/heads/NAME."""
    if out is None and target == FOLDER:
        raise ValueError("a head for the builtin target needs --out: what comes with the package is left as it is")
    return out or target / "heads" / drafter


def target_dtype(recipe: Recipe) -> str:
    """The dtype that the frozen target is loaded and computed in."""
    return compute_dtype(recipe.dtype).name
