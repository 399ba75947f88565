"""JSON lines from which a killed run resumes, the settings first and then the results; and rows of Parquet files."""

import dataclasses
import importlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.host import buckets
from jaxspec.host.atomic import write_whole

_BEGIN = '{"settings":'  # of the first line


@dataclasses.dataclass(frozen=True)
class LineLog:
    """A file of JSON lines. For errors: its `kind`, as `the log of a bench run`, and `other`, as `another --json`."""

    path: Path
    kind: str
    other: str

    def read(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines after the settings; none if there is no file. Raises as `lines`, and if settings differ."""
        if not self.path.exists() or not (lines := self.lines()):
            return []
        check_same_settings(self.path, flat(lines[0]["settings"]), flat(settings), self.other)
        return lines[1:]

    def resume(self, settings: dict[str, Any], size: int = 1) -> list[dict[str, Any]]:
        """The whole batches of `size` lines that a killed run has left. Removes the rest. Raises as `read`."""
        lines = self.read(settings)
        kept = lines[: len(lines) // size * size]
        self.write(settings, kept)
        return kept

    def lines(self) -> list[dict[str, Any]]:
        """All complete lines, the settings first. Raises ValueError if the file is no log."""
        *ended, rest = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        try:
            lines = [json.loads(line) for line in ended]
            are_objects = all(isinstance(line, dict) for line in lines)
            begun = rest[: len(_BEGIN)] == _BEGIN[: len(rest)]
            if not are_objects or not (isinstance(lines[0].get("settings"), dict) if lines else begun):
                raise ValueError("it does not begin with the settings of a run, or a line is no object")
        except ValueError as error:
            raise ValueError(f"{self.path} is not {self.kind} ({error}); delete it or choose {self.other}") from error
        return lines

    def write(self, settings: dict[str, Any], lines: Iterable[dict[str, Any]]) -> None:
        """Replaces the file."""
        write_whole(self.path, "".join(map(to_line, [{"settings": settings}, *lines])))

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        append_lines(self.path, lines)


def check_same_settings(path: Path, there: Mapping[str, Any], here: Mapping[str, Any], other: str) -> None:
    """Raises ValueError if a file has other settings than these; `other` is what to choose then: `another --json`."""
    for name, ours in json.loads(json.dumps(here)).items():
        if (theirs := there.get(name)) != ours:
            raise ValueError(
                f"{path} belongs to a run with other settings ({name} is {theirs} there and {ours} here); delete it or "
                f"choose {other}"
            )


def append_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds lines to a file, and waits until they are on disk; in a bucket they may be there some seconds later."""
    if buckets.in_bucket(path):
        buckets.append(path, "".join(map(to_line, lines)))
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(map(to_line, lines)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


def to_line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def parquet_rows(path: Path, what: str) -> list[dict[str, Any]]:
    """The rows of a Parquet file; `what` names it in errors. Raises ValueError for other files and without pyarrow."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(f"{what} is a Parquet file, which needs pyarrow: pip install pyarrow") from error
    try:
        return parquet.read_table(io.BytesIO(path.read_bytes()) if buckets.in_bucket(path) else path).to_pylist()
    except Exception as error:  # pyarrow has more kinds than ValueError and OSError
        reason = error if path.exists() else "there is no such file"
        raise ValueError(f"{what} cannot be read as Parquet: {reason}") from error


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting less; the inner keys are distinct."""
    return {
        name: inner
        for key, value in values.items()
        for name, inner in (value.items() if isinstance(value, dict) else [(key, value)])
    }
