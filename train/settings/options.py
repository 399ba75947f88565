"""The options that several commands share. Kept apart from the work, so that `--help` need not load JAX."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro import conf

from jaxspec.engine.device_options import Devices
from jaxspec.train.run.folder import open_run, run_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jax.sharding import Mesh

    from jaxspec.checkpoint.loading import Checkpoint
    from jaxspec.train.data.prepare import Found, Sources
    from jaxspec.train.run.heads import Job
    from jaxspec.train.run.recipe import Recipe

    Load = Callable[[Path, str, Mesh | None], Checkpoint]

Dtype = Literal["float32", "bfloat16"]
STDLIB = "stdlib"
_PLACES = ("out", "run_dir", "cache_features")
_NO_MATTER = ("evaluate_every", "save_every", "trials", "coordinator", "processes", "process_id")


@dataclasses.dataclass(frozen=True)
class Data:
    """What to train on."""

    data: Path = Path(STDLIB)
    """Folder of text, such as a source tree; or a file: plain text, JSONL with {"text": ...} or {"messages": ...} a
    line, or ShareGPT's JSON; or `stdlib`, the source of this Python's standard library. What is named so that a hash
    picks it, one file or record in 40, is held out: it only measures."""
    strict: bool = False
    """Refuse the data for its first bad record, instead of skipping and naming it."""

    def read(self) -> "Found":
        """The documents and conversations."""
        return read(self.data, self.strict)


@dataclasses.dataclass(frozen=True)
class DataMixture(Data):
    """What to train a head on."""

    open_data: Path | None = None
    """Open text to mix into the data, which is what `jaxspec-train generate` wrote then: named like --data, `stdlib`
    too. One file or record in 40 of it is held out, and nothing of the generated text, so that runs with and without
    that can be compared."""
    generated_share: float = 0.5
    """Of the training windows; the rest is open text. Only with --open-data."""

    def __post_init__(self) -> None:
        if not 0 < self.generated_share < 1:
            raise ValueError(f"{option('generated_share')} must be between 0 and 1, not {self.generated_share}")

    def sources(self) -> "Sources":
        """What is open and what is generated."""
        from jaxspec.train.data.prepare import Sources

        if self.open_data is None:
            return Sources(self.read())
        return Sources(read(self.open_data, self.strict), self.read(), self.generated_share)


@dataclasses.dataclass(frozen=True)
class Where:
    """A head's target and place."""

    target: Path
    """Checkpoint to train a head for."""
    out: Path | None = None
    """Head to make; TARGET/heads/NAME if not given. Must not exist."""
    run_dir: Annotated[Path | None, conf.arg(name="run")] = None
    """Folder of the run: checkpoints, metrics and a figure; OUT.run if not given. A run that was killed goes on from
    its last checkpoint when the same command is given again, and ends with the same bits."""
    context: int | None = None
    """Tokens of a training window; the target's own context if not given, at most 2048."""
    cache_features: Path | None = None
    """Folder to keep the target's features in, so that later epochs need not compute them: for small runs, since a
    token takes the hidden size times 2 or 4 bytes."""
    save_dtype: Dtype = "bfloat16"
    """Of the head's parameters on disk."""
    devices: conf.OmitArgPrefixes[Devices] = Devices()

    @contextlib.contextmanager
    def job(self, name: str, command: Any, data: DataMixture, recipe: "Recipe", load: "Load") -> "Iterator[Job]":
        """Loads of the target what `load` does, and opens the run."""
        from jaxspec.train.run import heads

        mesh = self.devices.open(several=True)
        target = load(self.target, heads.target_dtype(recipe), mesh)
        out = heads.folder_of(target.path, name, self.out)
        sources = data.sources()
        with open_run(run_folder(out, self.run_dir), settings(name, command)) as opened:
            yield heads.Job(target, sources, out, opened, recipe, self.context, self.cache_features, data.strict)


def read(data: Path, strict: bool) -> "Found":
    """The documents and conversations of a file or folder, or of the standard library.

    Raises:
        ValueError: nothing is there or can be used, or one record cannot and `strict` is set.
    """
    from jaxspec.train.data import records, text

    return text.standard_library() if str(data) == STDLIB else records.read(data, strict)


def option(name: str) -> str:
    """How a field is spelt on the command line."""
    return "--" + name.replace("_", "-")


def settings(name: str, command: Any) -> dict[str, Any]:
    """What decides a run, as it was typed: every option but places, how often to measure and save, how far to go."""

    def flat(value: Any) -> dict[str, Any]:
        found = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if dataclasses.is_dataclass(inner):
                found |= flat(inner)
            elif field.name not in (*_PLACES, *_NO_MATTER):
                found[option(field.name)] = str(inner) if isinstance(inner, Path) else inner
        return found

    return {"command": name, **flat(command)}
