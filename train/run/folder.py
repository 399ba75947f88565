"""The folder of a run, from which it resumes: settings, packed text, checkpoints and metrics."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.builtin import FOLDER
from jaxspec.evaluate.run_description import weights_of
from jaxspec.host import buckets, processes
from jaxspec.host.arguments import option_name
from jaxspec.host.atomic import write_whole
from jaxspec.host.json_lines import check_same_settings, flat

_FREE = ("out", "run_dir", "cache_features", "evaluate_every", "save_every", "trials", "mesh", "hosts")

_SETTINGS = "settings.json"
_ENTRIES = {  # all that a run writes
    _SETTINGS, "checkpoints", "data", "labels", "set", "sets", "trials.jsonl", "metrics.jsonl", "training.svg",
    "search.svg",
}  # fmt: skip

_SAVED = "commit_success.txt"  # Orbax's mark of a checkpoint that is complete, in a bucket


class Run:
    """The folder of a run, and the paths in it."""

    def __init__(self, folder: Path):
        self.folder, self.checkpoints = folder, folder / "checkpoints"
        self.data = folder / "data"  # packed windows
        self.labels = folder / "labels"  # of Cali-TS's predictor, one file for each batch of texts
        self.trials = folder / "trials.jsonl"  # of a search
        self.metrics, self.figure = folder / "metrics.jsonl", folder / "training.svg"

    @property
    def started(self) -> bool:
        """Whether the run can be resumed: it has a checkpoint (named by its step), labels or trials."""
        saved = [path for path in self.checkpoints.glob("*") if path.name.isdecimal()]
        if buckets.in_bucket(self.folder):
            saved = [path for path in saved if (path / _SAVED).exists()]
        return bool(saved) or any(self.labels.glob("*.npz")) or self.trials.exists()


def as_typed(name: str, settings: Any, dtype: str) -> dict[str, Any]:
    """The settings that determine a run's result, by option, as JSON values. A resumed run may change the others.

    `dtype` is that of the computation, whose default differs between devices.
    """
    values = flat(dataclasses.asdict(settings)).items()
    decisive = {option_name(field): value for field, value in values if field not in _FREE}
    return json.loads(json.dumps({"command": name, **decisive, "--dtype": dtype}, default=str))


def hashes(target: Path, head: str | None = None) -> dict[str, str]:
    """What a run depends on beside its settings: the weights, of a head too, and the tokenizer."""
    weights = weights_of(target, [head])
    found = {"the hash of the target": weights["params_sha256"], "the tokenizer's hash": weights["tokenizer_sha256"]}
    return found | {f"the hash of {name}": value for name, value in weights["heads_sha256"].items()}


def default_out(folder: Path, what: str) -> Path:
    """The folder of a new head, or of another output, without --out. Raises ValueError if it is in the package."""
    if FOLDER in folder.parents:
        raise ValueError(f"{what} needs --out, because the package itself is never changed")
    return folder


def run_folder(out: Path, chosen: Path | None) -> Path:
    """The folder of the run that makes `out`. Raises ValueError if it is to be named after `out`, which has no name."""
    if chosen is None and not out.name:
        raise ValueError(f"{out} has no name of its own; name the output itself")
    return chosen or out.with_name(out.name + ".run")


@contextlib.contextmanager
def open_run(folder: Path, settings: dict[str, Any]) -> Iterator[Run]:
    """Opens the run in a folder, new or resumed. The folder stays, unless the run ends before its first checkpoint.

    Raises ValueError, and removes nothing, if the folder is of a run with other `settings` (`as_typed`), or of no run.
    """
    run = Run(folder)
    if not processes.is_first():
        processes.wait()
        yield run
        return
    file, names = folder / _SETTINGS, _names(folder)
    if names and not file.exists():
        raise ValueError(f"{folder} exists and is not the folder of a run; name another with --run")
    before = _settings(file) if names else {}
    if run.started:
        check_same_settings(folder, before, settings, "another --run")
    elif strange := sorted(names - _ENTRIES):
        raise ValueError(f"{folder} holds {strange[0]}, which is not of a run; remove it, or name another with --run")
    elif folder.exists():
        buckets.remove(folder)  # killed before its first checkpoint, so nothing is lost
    first = not buckets.in_bucket(folder) and not folder.parent.exists()  # as may be `heads` of a checkpoint
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(settings, indent=2) + "\n")
        processes.wait()
        yield run
    finally:
        if not run.started and _names(folder) <= _ENTRIES:
            with contextlib.suppress(OSError):
                buckets.remove(folder)
                if first:
                    folder.parent.rmdir()  # it may not be empty


def _names(folder: Path) -> set[str]:
    """The names in a folder, if there is one, without temporary names (`atomic`) of what a run writes."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    is_part = lambda name: name.endswith(".part") and any(name.startswith(f".{entry}.") for entry in _ENTRIES)
    return {name for name in names if not is_part(name)}


def _settings(file: Path) -> dict[str, Any]:
    """The settings of the run in a folder. Raises ValueError if they cannot be read, or are of something else."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}; remove {file.parent} to start again") from error
    of_run = lambda name: name == "command" or name.startswith(("--", "the "))
    if not isinstance(settings, dict) or "command" not in settings or not all(map(of_run, settings)):
        raise ValueError(f"{file} is not of a run of jaxspec-train; name another folder with --run")
    return settings
