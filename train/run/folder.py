"""The folder of a run, from which it resumes: settings, packed text, checkpoints and metrics."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.host import processes
from jaxspec.host.atomic import write_whole
from jaxspec.train.settings.spelling import option

_PLACES = ("out", "run_dir", "cache_features")
_FREE = (*_PLACES, "evaluate_every", "save_every", "trials", "coordinator", "processes", "process_id")


@dataclasses.dataclass(frozen=True)
class Run:
    """Where a run keeps what it needs to go on, and what it measured."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def started(self) -> bool:
        """Whether there is something to go on from: a checkpoint, which Orbax names by its step, labels or trials."""
        saved = any(path.name.isdecimal() for path in self.checkpoints.glob("*"))
        return saved or any(self.labels.glob("*.npz")) or self.trials.exists()

    @property
    def data(self) -> Path:
        """Packed windows."""
        return self.folder / "data"

    @property
    def labels(self) -> Path:
        """What Cali-TS's predictor is trained on, a file a batch of texts."""
        return self.folder / "labels"

    @property
    def trials(self) -> Path:
        """What a search has tried, a line of JSON each."""
        return self.folder / "trials.jsonl"

    @property
    def metrics(self) -> Path:
        """A line of JSON a step and an evaluation."""
        return self.folder / "metrics.jsonl"

    @property
    def figure(self) -> Path:
        return self.folder / "training.svg"


def as_typed(name: str, settings: Any) -> dict[str, Any]:
    """What decides a run, as it was typed: every option but places, how often to measure and save, how far to go."""

    def flat(value: Any) -> dict[str, Any]:
        found = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if dataclasses.is_dataclass(inner):
                found |= flat(inner)
            elif field.name not in _FREE:
                found[option(field.name)] = str(inner) if isinstance(inner, Path) else inner
        return found

    return {"command": name, **flat(settings)}


def run_folder(out: Path, chosen: Path | None) -> Path:
    """Where the run of an output is kept."""
    return chosen or out.with_name(out.name + ".run")


@contextlib.contextmanager
def open_run(folder: Path, settings: dict[str, Any]) -> Iterator[Run]:
    """The run in a folder, new or to go on with. It stays there, unless it is broken off before its first checkpoint.

    Args:
        settings: what decides the run, ready for JSON.

    Raises:
        ValueError: the folder is another run's, or none.
    """
    run = Run(folder)
    if not processes.is_first():
        processes.wait()
        yield run
        return
    file = folder / "settings.json"
    settings = json.loads(json.dumps(settings))
    if folder.exists() and not file.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists and is not the folder of a run; name another with --run")
    if file.exists() and run.started:
        _check_same(file, settings)
    elif folder.exists():
        shutil.rmtree(folder)  # killed before its first checkpoint: nothing is lost
    first = not folder.parent.exists()  # of a checkpoint's heads
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*.part"):
            shutil.rmtree(left, ignore_errors=True)
        write_whole(file, json.dumps(settings, indent=2) + "\n")
        processes.wait()
        yield run
    finally:
        if not run.started:
            shutil.rmtree(folder, ignore_errors=True)
            if first:
                with contextlib.suppress(OSError):  # there is something in it by now
                    folder.parent.rmdir()


def _check_same(file: Path, settings: dict[str, Any]) -> None:
    """Raises ValueError if a run was started with other settings."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}; remove {file.parent} to start again") from error
    for name in sorted({*settings, *before}):
        if settings.get(name) != before.get(name):
            raise ValueError(
                f"the run in {file.parent} was started with {name} {before.get(name)} and not {settings.get(name)}; "
                "give the same value to resume it, name another folder with --run, or remove it to start again"
            )
