"""Shared by the training of all heads: loads target and text, trains the head, writes it."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array

from jaxspec.checkpoint import loading
from jaxspec.checkpoint.heads import find_head, write_head
from jaxspec.checkpoint.loading import Checkpoint, training_dtype
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.decoding.drafter import FLOAT32, Drafter, HeadShape, Models
from jaxspec.engine.head_weights import head_config, read_shape, restore_head
from jaxspec.host import compilation, processes
from jaxspec.host.atomic import check_new, is_whole, staged, staged_by_all
from jaxspec.host.buckets import with_paths
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import say
from jaxspec.model.backend import use_mesh
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import LM_HEAD, dense, whole_name
from jaxspec.model.sharding import TRAINING, move, place
from jaxspec.train.data import dataset
from jaxspec.train.data.text import Windows
from jaxspec.train.options import HeadSettings
from jaxspec.train.run import feature_cache
from jaxspec.train.run.folder import Run, as_typed, default_out, hashes, open_run, run_folder
from jaxspec.train.run.log import draw_figure
from jaxspec.train.run.packed import Loss
from jaxspec.train.run.trainer import fit, measure_chain, measurement

Head = TypeVar("Head", bound=nnx.Module)
Load = Callable[[Path, str, Mesh | None], Checkpoint]
LONGEST = 2048  # most tokens of a window by default


@dataclasses.dataclass(frozen=True)
class Job:
    """The inputs and outputs of a head's training; `out` is the folder of the new head."""

    target: Checkpoint
    sources: dataset.Sources
    out: Path
    run: Run
    settings: HeadSettings


@contextlib.contextmanager
def open_job(name: str, settings: HeadSettings, load: Load = loading.load) -> Iterator[Job]:
    """Loads the target by `load`, and opens the run. `name` is the head's default name in TARGET/heads."""
    settings = with_paths(settings)
    mesh = settings.devices.open(several=True)
    dtype = training_dtype(settings.recipe.dtype).name
    target = load(settings.target, dtype, mesh)
    out = settings.out or default_out(target.path / "heads" / name, "a head for the builtin target")
    sources = dataset.sources_of(settings.data)
    typed = as_typed(name, settings, dtype) | hashes(target.path)
    with open_run(run_folder(out, settings.run_dir), typed) as run:
        yield Job(target, sources, out, run, settings)


def check_range(option: str, least: int, most: int, *values: int) -> None:
    """Raises ValueError for the first of these values of an option that the target does not allow."""
    if outside := [value for value in values if not least <= value <= most]:
        raise ValueError(f"{option} must be from {least} to {most} for this target, not {outside[0]}")


def prepared(job: Job) -> tuple[Windows, Windows | None]:
    """The windows of text for training, and held-out ones. The first process makes them if the run has none yet."""
    target, data = job.target, job.run.data
    check_new(job.out)
    if target.tokenizer is None:
        raise ValueError(f"{target.path} has no tokenizer, so it cannot encode the text")
    model, length = target.config.model, job.settings.context
    length = min(LONGEST, model.usable_length) if length is None else length
    check_range("--context", 4, model.usable_length, length)
    if processes.is_first() and is_whole(data):
        dataset.warn_of_changes(data, job.sources)
    elif processes.is_first():
        with staged(data, 0) as folder:
            dataset.prepare(folder, target.tokenizer, job.sources, length, job.settings.recipe, model.vocab_size)
    processes.wait()
    return dataset.load(data)


def built(mesh: Mesh | None, drafter: Drafter, shape: HeadShape, seed: int) -> Any:
    """A head with random weights. On a mesh each is made in parts, because a large head may not fit on one chip."""
    build = lambda: drafter.build_head(shape, nnx.Rngs(seed))
    if mesh is None:
        return build()
    places = jax.tree.map(lambda leaf: leaf.sharding, place(nnx.eval_shape(build), mesh, TRAINING))
    with use_mesh(mesh):
        return jax.jit(build, out_shardings=places)()


def train_head(settings: HeadSettings, drafter: Drafter, loss: Loss) -> nnx.Module:
    """Trains a head of `drafter` from random weights, and writes it to `settings.out`.

    The target is frozen. The head has the shape `drafter.head_for(target)`. The run packs the text, saves checkpoints,
    measures the loss and the acceptance of drafts on held-out text, and keeps the weights that draft best. Calling it
    again with the same settings resumes an interrupted run bit-exactly.

    Args:
        settings: target, text, output and hyperparameters.
        loss: function (head, target, batch, key) → (summed loss, sums), where sums["count"] is the number of tokens in
            the sum. The key is None in measurements.

    Returns:
        The trained head, in float32.

    Raises:
        ValueError: there is too little text, the loss overflows, the head has other variables than parameters, or
            `settings.out` exists or its parent does not.
        DiskFullError: the disk has too little space.
    """
    with open_job(drafter.name, settings) as job:
        shape = drafter.head_for(job.target.config.model)
        head = built(job.target.mesh, drafter, shape, settings.recipe.seed)
        check_trainable(head)
        return train(job, drafter, shape, head, loss)


def check_trainable(head: nnx.Module) -> None:
    """Raises ValueError for a variable that is no parameter of floats, because all are trained and stored."""
    for path, variable in nnx.to_flat_state(nnx.state(head)):
        if not isinstance(variable, nnx.Param) or not jnp.issubdtype(variable[...].dtype, jnp.floating):
            raise ValueError(
                f"{'.'.join(map(str, path))} of the head is a {type(variable).__name__} of {variable[...].dtype}; only "
                "an nnx.Param of floats can be trained and stored, so leave out dropout, batch norm and the like"
            )


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
    """Trains a head of `drafter` with a frozen target, and writes it atomically to `job.out`; see `train_head`.

    Args:
        head: initial weights, float32; donated. With --init, those of that head take their place.
        decodes: whether the whole target is loaded, so that acceptance can be measured. Then the weights with the
            largest `tau` are kept, otherwise those with the smallest held-out loss.
        write: writes the trained weights into a folder; None: as a head.
    """
    compilation.keep_compilations()
    settings, recipe, run, target = job.settings, job.settings.recipe, job.run, job.target
    if settings.init is not None:
        given = initial_shape(settings.init, target, drafter)
        check_same_head(settings.init, drafter, given, shape)
        shape = dataclasses.replace(shape, model=given.model)
        for leaf in jax.tree.leaves(head):
            leaf.delete()  # the caller keeps the module, and a large head does not fit twice
        head = restore_head(target, drafter, find_head(target.path, settings.init), FLOAT32)
        check_trainable(head)
    if write is None:
        config = head_config(drafter, shape, target.config, settings.save_dtype, job.sources.chat_args)
        write = lambda folder, trained: write_head(folder, config, trained)
    size = sum(leaf.size for leaf in jax.tree.leaves(head))
    with staged_by_all(job.out, size * 4) as folder, use_mesh(target.mesh):
        packed, held_out = prepared(job)
        if target.mesh is not None:
            head = move(head, place(head, target.mesh, TRAINING))
        complete = measure = None
        if (cached := settings.cache_features) is not None:
            taps = drafter.taps(Models(target=target.target, draft=head))
            complete = feature_cache.open_cache(cached, target.target, packed, taps).complete
        if held_out is None:
            say("no text is held out, so nothing is measured, and the last weights are kept")
        else:
            chain = measure_chain(target, drafter, held_out) if decodes else None
            measure = measurement(loss, held_out, recipe, target.target, chain)
        trained, measured = fit(loss, head, target.target, packed, recipe, run, measure=measure, complete=complete)
        if processes.is_first():
            draw_figure(run.metrics, run.figure)
        with deferred():
            write(folder, trained)
    name, key = ("chain tau", "tau") if decodes else ("loss", "loss")
    result = "" if measured is None else f", {name} {measured[key]:.2f} on held-out text"
    say(f"wrote {job.out}: {drafter.name}, {size:,} parameters{result}")
    return trained


def initial_shape(name: str, target: Checkpoint, drafter: Drafter) -> HeadShape:
    """The shape of the head of --init, without what was calibrated after training.

    Raises CheckpointError as `read_shape`.
    """
    shape = read_shape(find_head(target.path, name), drafter, target.config.model)
    return dataclasses.replace(shape, settings={k: v for k, v in shape.settings.items() if k != "temperatures"})


def check_same_head(name: str, drafter: Drafter, given: HeadShape, options: HeadShape) -> None:
    """Raises ValueError if the head of --init differs from that of these options in more than sizes of its layers."""
    sizes = {name: getattr(options.model, name) for name in ("num_layers", "hidden_size")}
    wanted = dataclasses.replace(options, model=dataclasses.replace(given.model, **sizes))
    build = lambda shape: nnx.eval_shape(lambda: drafter.build_head(shape, nnx.Rngs(0)))
    if nnx.graphdef(build(given)) == nnx.graphdef(build(wanted)):  # settings that are left out have defaults
        return
    theirs, ours = ({**dataclasses.asdict(each.model), **each.settings} for each in (given, wanted))
    keys = sorted(theirs | ours, key=lambda key: key not in theirs)
    texts = {key: [json.dumps(each.get(key)) for each in (theirs, ours)] for key in keys}
    key, (has, gives) = next((key, both) for key, both in texts.items() if both[0] != both[1])
    raise ValueError(
        f"the head of --init, {name}, has {key} = {has:.60}, and the options of this training give {gives:.60}: give "
        "those of the head"
    )


def started(head: Head, target: Llama, sources: Mapping[str, str]) -> Head:
    """The head, abstract or not, with `copies` of the target's parameters."""
    return dict_to_module(head, {**module_to_dict(head), **copies(module_to_dict(target), sources)})


def copies(params: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Array]:
    """Parameters of a head by name, float32, copied from the target's, because training donates its arrays.

    `params` are the target's, quantised or not; `sources` gives the name of the target's parameter by the head's. The
    LM head of a tied target is its embedding, transposed.
    """
    names, tied = set(sources.values()), LM_HEAD not in map(whole_name, params)
    arrays = dense(params, (names - {LM_HEAD}) | {"embedding"} if tied else names)
    array_of = lambda source: arrays["embedding"].T if tied and source == LM_HEAD else arrays[source]
    return {name: jnp.array(array_of(source), jnp.float32, copy=True) for name, source in sources.items()}
