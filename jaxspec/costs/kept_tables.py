"""Measured tables of costs and of speeds, stored in the user's cache folder."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxspec.decoding.cost_table import CostTable
from jaxspec.host import environment
from jaxspec.host.atomic import write_whole

T = TypeVar("T")
FORMAT = {"format": "jaxspec-costs", "version": 3}


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of a table: what was measured, and on which device.

    Attributes:
        target, head: SHA-256 of the target's and the head's config.json, which holds every shape; `head` is empty
            without a head. Costs do not depend on the values of weights. In a table of speeds, `head` is a hash of all
            weights (`kept_speeds`).
        drafter: the strategy with its settings; in a table of speeds, `all methods`.
        batch: sequences decoded together.
        device: the device as text.
        versions: versions of the software that compiled the programs. Other versions make a table stale.
    """

    target: str
    head: str
    drafter: str
    batch: int
    dtype: str
    device: str
    versions: dict[str, str]

    @property
    def file(self) -> Path:
        """The file of its table, in the user's cache folder."""
        lasting = {name: value for name, value in dataclasses.asdict(self).items() if name != "versions"}
        name = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]
        return folder() / f"{name}.json"


def folder() -> Path:
    """The folder of all tables."""
    return environment.cache_folder() / "costs"


def write(subject: Subject, values: Mapping[str, Any]) -> None:
    """Keeps a table, whole or not at all. Raises OSError if the cache folder cannot be written."""
    subject.file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(subject.file, json.dumps({**FORMAT, "of": dataclasses.asdict(subject), **values}, indent=2) + "\n")


def read(subject: Subject) -> CostTable:
    """The table of costs that was kept; raises as `read_as`."""
    return read_as(table_of, subject)


def read_as(make: Callable[[Mapping[str, Any]], T], subject: Subject) -> T:
    """The stored table, made by `make` from its JSON.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or other versions were measured.
    """
    try:
        values = json.loads(subject.file.read_text(encoding="utf-8"))
        found = {name: values[name] for name in (*FORMAT, "of")}
        table = make(values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the table {subject.file} cannot be read ({' '.join(str(error).split())})") from error
    if found != {**FORMAT, "of": dataclasses.asdict(subject)}:
        raise ValueError(f"the table {subject.file} was measured with other versions")
    return table


def table_of(values: Mapping[str, Any]) -> CostTable:
    """The table that JSON holds. Raises ValueError, TypeError or KeyError where it holds none."""

    def pairs(name):
        return tuple((int(nodes), float(seconds)) for nodes, seconds in values[name])

    return CostTable(plain=float(values["plain"]), verify=pairs("verify"), level=pairs("level"))
