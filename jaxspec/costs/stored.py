"""Measured tables of costs and of speeds, stored in the user's cache folder."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxspec.checkpoint.checksums import NAME as CHECKSUMS
from jaxspec.checkpoint.heads import find_head
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.prefill_buckets import power_of_two
from jaxspec.host import environment
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import is_first
from jaxspec.host.terminal import say

T = TypeVar("T")
FORMAT = {"format": "jaxspec-costs", "version": 3}
SPEEDS = "tokens_per_second"


@dataclasses.dataclass(frozen=True)
class CostKey:
    """What a stored table depends on: what was measured, and on which device.

    Attributes:
        target, head: SHA-256 of the target's and the head's config.json, which holds every shape; `head` is empty
            without a head. In a table of speeds, `head` is a hash of all weights.
        drafter: the strategy with its settings; in a table of speeds, `all methods`.
        batch: sequences decoded together.
        versions: of the software that compiled the programs. Other versions make a table stale.
    """

    target: str
    head: str
    drafter: str
    batch: int
    dtype: str
    device: str
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {name: environment.versions()[name] for name in ("jaxspec", "jax", "jaxlib")}
    )

    @property
    def file(self) -> Path:
        """The file of its table, in the user's cache folder."""
        lasting = {name: value for name, value in dataclasses.asdict(self).items() if name != "versions"}
        name = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]
        return folder() / f"{name}.json"


def folder() -> Path:
    """The folder of all tables."""
    return environment.cache_folder() / "costs"


def digest(folder: Path) -> str:
    """SHA-256 of a checkpoint's or head's config.json."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


def speeds_key(path: Path, heads: Sequence[str], *, batch_size: int, dtype: str, device: str) -> CostKey:
    """The key of a table of the speeds of all methods of the checkpoint at `path`.

    Acceptance depends on the weights. So the key contains their checksums, if the checkpoint has them.
    """
    found = hashlib.sha256()
    for folder in (path, *(find_head(path, head) for head in sorted(heads))):
        for name in ("config.json", CHECKSUMS):
            content = (folder / name).read_bytes() if (folder / name).exists() else b""
            found.update(f"{folder.name}/{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    batch = power_of_two(batch_size)
    return CostKey(digest(path), found.hexdigest(), "all methods", batch, dtype, device)


def store(key: CostKey, values: Mapping[str, Any]) -> None:
    """Stores a table, a `CostTable` as a dictionary or `SPEEDS` by method, in the first process's cache folder.

    stderr names the file, or tells that the folder is read-only.
    """
    if not is_first():
        return
    try:
        key.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(key.file, json.dumps({**FORMAT, "of": dataclasses.asdict(key), **values}, indent=2) + "\n")
        say(f"kept in {key.file}")
    except OSError as error:
        say(f"not kept, since {key.file.parent} cannot be written ({error.strerror})")


def read_costs(key: CostKey) -> CostTable:
    """The stored table of costs.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or was measured with other versions.
    """
    return _read(table_of, key)


def read_speeds(key: CostKey) -> dict[str, float]:
    """Tokens per second by method, with all its settings; raises as `read_costs`."""

    def speeds_of(values: Mapping[str, Any]) -> dict[str, float]:
        speeds = {str(method): float(speed) for method, speed in values[SPEEDS].items()}
        if not speeds or not all(0 < speed < math.inf for speed in speeds.values()):
            raise ValueError("there must be speeds, and all must be positive")
        return speeds

    return _read(speeds_of, key)


def _read(make: Callable[[Mapping[str, Any]], T], key: CostKey) -> T:
    try:
        values = json.loads(key.file.read_text(encoding="utf-8"))
        found = {name: values[name] for name in (*FORMAT, "of")}
        table = make(values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the table {key.file} cannot be read ({' '.join(str(error).split())})") from error
    if found != {**FORMAT, "of": dataclasses.asdict(key)}:
        raise ValueError(f"the table {key.file} was measured with other versions")
    return table


def table_of(values: Mapping[str, Any]) -> CostTable:
    """The table of costs in JSON. Raises ValueError, TypeError or KeyError if it is damaged."""

    pairs = lambda name: tuple((int(nodes), float(seconds)) for nodes, seconds in values[name])
    idle = values.get("idle")  # absent, as the others, in tables of earlier versions
    return CostTable(
        plain=float(values["plain"]),
        verify=pairs("verify"),
        level=pairs("level"),
        idle=None if idle is None else float(idle),
        context=int(values.get("context", 0)),
        longer=tuple(map(table_of, values.get("longer", ()))),
    )
