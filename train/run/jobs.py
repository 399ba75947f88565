"""What a command that trains a head begins with: the target loaded, the text read, the run opened."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from jax.sharding import Mesh

from jaxspec.checkpoint import loading
from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.checkpoint.loading import Checkpoint, compute_dtype
from jaxspec.train.data.sources import Sources, sources_of
from jaxspec.train.run.folder import Run, open_run, run_folder
from jaxspec.train.settings.heads import HeadSettings, Where
from jaxspec.train.settings.recipe import Recipe
from jaxspec.train.settings.spelling import as_typed

Load = Callable[[Path, str, Mesh | None], Checkpoint]


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train a head on, and where to put it.

    Attributes:
        out: folder of the head, to be made.
        where, recipe: as they were asked for.
    """

    target: Checkpoint
    sources: Sources
    out: Path
    run: Run
    where: Where
    recipe: Recipe


@contextlib.contextmanager
def open_job(name: str, settings: HeadSettings, load: Load = loading.load) -> Iterator[Job]:
    """Loads of the target what `load` does, and opens the run.

    Args:
        name: of the head, under TARGET/heads.
    """
    where = settings.where
    mesh = where.devices.open(several=True)
    target = load(where.target, compute_dtype(settings.recipe.dtype).name, mesh)
    out = folder_of(target.path, name, where.out)
    sources = sources_of(settings.data)
    with open_run(run_folder(out, where.run_dir), as_typed(name, settings)) as run:
        yield Job(target, sources, out, run, where, settings.recipe)


def folder_of(target: Path, name: str, out: Path | None) -> Path:
    """Where a head goes: `out`, or TARGET/heads/NAME."""
    if out is None and target == FOLDER:
        raise ValueError("a head for the builtin target needs --out: what comes with the package is left as it is")
    return out or target / "heads" / name


def load_with_tokenizer(target: Path, dtype: str | None, mesh: Mesh | None = None) -> Checkpoint:
    """A checkpoint. Raises ValueError where it has no tokenizer."""
    model = loading.load(target, dtype, mesh)
    if model.tokenizer is None:
        raise ValueError(f"{model.path} has no tokenizer, so what it says cannot be made into text")
    return model
