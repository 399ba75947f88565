"""The speeds of a checkpoint's methods on a device, which decide its default method. `jaxspec calibrate --all` measures
them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.checksums import NAME as CHECKSUMS
from jaxspec.checkpoint.heads import find_head
from jaxspec.costs import kept_tables
from jaxspec.costs.calibration import subject_of
from jaxspec.costs.kept_tables import Subject

SPEEDS = "tokens_per_second"


def of_all_methods(path: Path, heads: Sequence[str], **how: Any) -> Subject:
    """The subject of a table of all methods of the checkpoint at `path`; `how` as for `subject_of`.

    Acceptance depends on the weights. So the subject contains the checksums of the target's and each head's weights, if
    the checkpoint has them.
    """
    found = hashlib.sha256()
    for folder in (path, *(find_head(path, head) for head in sorted(heads))):
        for name in ("config.json", CHECKSUMS):
            content = (folder / name).read_bytes() if (folder / name).exists() else b""
            found.update(f"{folder.name}/{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return subject_of(path, drafter="all methods", head=found.hexdigest(), **how)


def read(subject: Subject) -> dict[str, float]:
    """Tokens a second by method, with all its settings; raises as `kept_tables.read_as`."""
    return kept_tables.read_as(_speeds, subject)


def write(subject: Subject, speeds: Mapping[str, float]) -> None:
    """Keeps the speeds. Raises OSError if the cache folder cannot be written."""
    kept_tables.write(subject, {SPEEDS: dict(speeds)})


def _speeds(values: Mapping[str, Any]) -> dict[str, float]:
    speeds = {str(method): float(speed) for method, speed in values[SPEEDS].items()}
    if not speeds or not all(0 < speed < math.inf for speed in speeds.values()):
        raise ValueError("speeds must be there and positive")
    return speeds
